package bed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

// ClusterConfig says what cluster to start.
type ClusterConfig struct {
	Config
	// Proxies are the kube-proxy modes of the nodes (ipvs, iptables), one for each node.
	Proxies []string
	// Prepare runs while the nodes boot, to create objects early; may be nil.
	Prepare func(context.Context, *ControlPlane) error
	// Images are image archives, which are imported on every node.
	Images []string
}

// A Cluster is a control plane with nodes.
type Cluster struct {
	*ControlPlane
	Nodes   []*Node
	Outside *Outside
}

// Packages are the Debian packages that nodes need.
func Packages() []host.Package {
	return []host.Package{
		{Name: "user-mode-linux", Why: "the nodes' kernel, with IPVS and dummy links"},
		{Name: "gcc", Why: "compiles what lets that kernel run on processors with AMX"},
		{Name: "libc6-dev", Why: "as gcc"},
		{Name: "libseccomp-dev", Why: "runc is built with it"},
		{Name: "pkg-config", Why: "runc's build finds libseccomp by it"},
		{Name: "iptables", Why: "kube-proxy and the cache's image use both flavours"},
		{Name: "ipset", Why: "kube-proxy in IPVS mode uses it"},
		{Name: "kmod", Why: "loads the nodes' kernel modules"},
		{Name: "e2fsprogs", Why: "formats the nodes' disks"},
		{Name: "busybox-static", Why: "the tools inside the client image and on the nodes"},
	}
}

// TestPackages are the Debian packages that tests of the cache on a kernel need, be it the host's or User-Mode Linux.
func TestPackages() []host.Package {
	return []host.Package{
		{Name: "iptables", Why: "the cache's rules, in both flavours"},
		{Name: "nftables", Why: "looks at what the cache's own table holds"},
		{Name: "iproute2", Why: "sets up links and namespaces"},
		{Name: "ipvsadm", Why: "sets up Services as kube-proxy does in IPVS mode"},
		{Name: "gcc", Why: "compiles the clients that resolve by C libraries; the race detector needs C, too"},
		{Name: "libc6-dev", Why: "as gcc"},
		{Name: "musl-tools", Why: "compiles the client that resolves as Alpine's do"},
	}
}

// StartCluster installs and builds what is missing, and returns when all nodes are Ready. What was started is stopped
// again when it fails.
func StartCluster(ctx context.Context, cfg ClusterConfig) (*Cluster, error) {
	cfg.Nodes = len(cfg.Proxies)
	if err := Preflight(cfg.Nodes); err != nil {
		return nil, err
	}
	if err := host.Install(ctx, cfg.Console, Packages()...); err != nil {
		return nil, err
	}
	if _, err := parts.Build(ctx, cfg.Console, parts.ControlPlane(), parts.Node()); err != nil {
		return nil, err
	}
	cp, err := StartControlPlane(ctx, cfg.Config)
	if err != nil {
		return nil, err
	}
	c := &Cluster{ControlPlane: cp}
	if err := c.start(ctx, cfg); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// Stop ends the nodes and the control plane.
func (c *Cluster) Stop() {
	c.Outside.stop()
	c.ControlPlane.Stop()
}

func (c *Cluster) start(ctx context.Context, cfg ClusterConfig) (err error) {
	if c.Outside, err = startOutside(ctx, c.ns); err != nil {
		return err
	}
	var folders []string
	for _, a := range cfg.Images {
		if dir := filepath.Dir(a); !slices.Contains(folders, dir) {
			folders = append(folders, dir)
		}
	}
	c.Nodes = make([]*Node, len(cfg.Proxies))
	g, gctx := errgroup.WithContext(ctx)
	if cfg.Prepare != nil {
		g.Go(func() error { return cfg.Prepare(gctx, c.ControlPlane) })
	}
	for i, mode := range cfg.Proxies {
		g.Go(func() (err error) {
			begin := time.Now()
			step := func(what string) {
				cfg.Console.Step("%s: %s (%.1fs)", nodeName(i+1), what, time.Since(begin).Seconds())
			}
			n, err := c.boot(gctx, i+1, folders)
			if err != nil {
				return err
			}
			c.Nodes[i] = n
			step("kernel is up")
			if err := n.prepare(gctx, cfg.Images); err != nil {
				return err
			}
			step(fmt.Sprintf("containerd is up, %d images imported", len(cfg.Images)))
			if err := n.startKubelet(gctx); err != nil {
				return err
			}
			if err := n.StartProxy(gctx, mode); err != nil {
				return err
			}
			if err := c.waitReady(gctx, n); err != nil {
				return err
			}
			step("Ready")
			return nil
		})
	}
	return g.Wait()
}

func (c *Cluster) waitReady(ctx context.Context, n *Node) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	err = host.Until(ctx, n.Name+" to be Ready", 120*time.Second, func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range node.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%s is not Ready", n.Name)
	}, n.kernel)
	if err != nil {
		return fmt.Errorf("%w; the last lines of kubelet:\n%s", err, n.Log("kubelet"))
	}
	return nil
}

// Preflight says what keeps this machine from carrying a cluster with that many nodes; nil means nothing.
func Preflight(nodes int) error {
	err := host.Preflight(host.Needs{Root: true, UML: true, Memory: 1500 + 1000*nodes, Disk: 4000, Dir: os.TempDir()})
	if err != nil {
		return fmt.Errorf("this machine cannot run the cluster: %w", err)
	}
	return nil
}
