package bed

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nodedns/nodedns/e2e/agent"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/uml"
)

// A Node is a User-Mode Linux kernel with kubelet, containerd and kube-proxy on it.
type Node struct {
	// Name is the name of the Node object.
	Name string
	// IP is its address, the Node's InternalIP.
	IP netip.Addr
	// Agent runs commands on it.
	Agent *agent.Client

	number int
	cp     *ControlPlane
	dir    string
	images []string // folders
	kernel *host.Process
}

// nodeMemory is what a node's kernel sees. The host gives it page by page, about 450 MiB in practice.
const nodeMemory = "1536M"

// boot starts node n's kernel and returns when its agent answers. images are the folders of image archives.
func (cp *ControlPlane) boot(ctx context.Context, n int, images []string) (*Node, error) {
	node := &Node{Name: nodeName(n), IP: nodeIP(n), number: n, cp: cp, dir: cp.ws.Path(nodeName(n)), images: images}
	if err := os.MkdirAll(node.dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of %s: %w", node.Name, err)
	}
	if err := node.configure(); err != nil {
		return nil, err
	}
	disk := cp.ws.Path(node.Name + ".img")
	if err := makeDisk(ctx, disk); err != nil {
		return nil, err
	}
	preload, err := uml.Preload(ctx, node.dir) // a folder of its own: nodes boot at the same time
	if err != nil {
		return nil, err
	}
	node.kernel, err = cp.Start(host.Command{
		Name: node.Name, Path: "linux.uml", Log: filepath.Join(node.dir, "console.log"),
		// The kernel leaves a process for each of its own behind when it is killed; a PID namespace takes them along.
		Alone: true,
		// A machine does not get slower because another one is busy: what else runs here should not stop the node's clock.
		Nice: -10,
		Env:  append(preload, "TMPDIR="+cp.ws.Path()), // TMPDIR for the file behind its memory
		Args: []string{
			"umid=" + node.Name, "uml_dir=" + cp.ws.Path("uml"), "mem=" + nodeMemory,
			"root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "init=" + cp.Program("bed-init"), "BED_NODE=" + node.dir,
			"ubd0=" + disk, "vec0:transport=tap,ifname=" + tapName(n) + ",depth=128,gro=1",
			// kube-proxy syncs each address family by itself, some four seconds each in this kernel.
			"ipv6.disable=1", "con=null", "con0=null,fd:1", "quiet", "panic=-1",
		},
	})
	if err != nil {
		return nil, err
	}
	node.Agent = agent.NewClient(netip.AddrPortFrom(node.IP, agent.Port).String(), cp.ns.Dial)
	err = host.Until(ctx, "the agent of "+node.Name, 60*time.Second, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return node.Agent.Ready(ctx)
	}, node.kernel)
	if err != nil {
		return nil, fmt.Errorf("%w; the last lines of its console:\n%s", err, host.Tail(filepath.Join(node.dir, "console.log"), 20))
	}
	return node, nil
}

// configure writes what the node reads: the agent's configuration, and those of the programs on it.
func (n *Node) configure() error {
	self := agent.Node{
		Name: n.Name, Bin: n.cp.bin, Images: n.images,
		Address: netip.PrefixFrom(n.IP, 24).String(), Gateway: ControlPlaneIP, Nameserver: ControlPlaneIP,
		Routes: make(map[string]string), Modules: nodeModules(),
	}
	for other := 1; other <= n.cp.cfg.Nodes; other++ {
		if other != n.number {
			self.Routes[nodePods(other).String()] = nodeIP(other).String()
		}
	}
	text, err := json.MarshalIndent(self, "", "  ")
	if err != nil {
		return err
	}
	if err := n.cp.keys.node(n.Name, n.IP); err != nil {
		return err
	}
	files := map[string][]byte{"node.json": text}
	maps.Copy(files, n.settings())
	for _, key := range []string{"ca.crt", "proxy.kubeconfig", n.Name + ".kubeconfig", n.Name + "-server.crt", n.Name + "-server.key"} {
		if files[key], err = os.ReadFile(n.cp.keys.file(key)); err != nil {
			return fmt.Errorf("reading keys: %w", err)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(n.dir, name), text, 0o600); err != nil {
			return fmt.Errorf("writing the settings of %s: %w", n.Name, err)
		}
	}
	return nil
}

// makeDisk makes a sparse ext4 image, without a journal since nobody will mount it twice.
func makeDisk(ctx context.Context, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	defer f.Close()
	if err := f.Truncate(4 << 30); err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	out, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("formatting a disk: %w: %s", err, out)
	}
	return nil
}

// nodeModules are the kernel modules of a node: what CNI, kube-proxy and the cache's rules need. They are loaded ahead,
// since each load on demand starts a program.
func nodeModules() []string {
	return []string{
		"dummy", "veth", "bridge", "br_netfilter", "overlay",
		"ip_tables", "iptable_filter", "iptable_nat", "iptable_raw", "iptable_mangle", "ipt_REJECT",
		"xt_CT", "xt_MASQUERADE", "xt_addrtype", "xt_comment", "xt_conntrack", "xt_mark", "xt_multiport", "xt_nat", "xt_physdev",
		"xt_recent", "xt_set", "xt_socket", "xt_statistic", "xt_tcpudp",
		"nf_conntrack", "nf_conntrack_netlink", "ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh",
		"ip_set", "ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "ip_set_bitmap_port",
		"ip_set_list_set", "inet_diag", "udp_diag", "tcp_diag",
	}
}
