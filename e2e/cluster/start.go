package cluster

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodedns/nodedns/e2e/archive"
	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

//go:embed manifests
var manifests embed.FS

// Env is a running cluster with its cluster DNS.
type Env struct {
	*bed.Cluster
	// Client is an administrator's client.
	Client *kubernetes.Clientset

	con  *console.Console
	root string
}

// Start installs and builds what is missing, starts a cluster with one node for each kube-proxy mode, and returns when
// its cluster DNS answers on every node.
func Start(ctx context.Context, con *console.Console, proxies []string) (*Env, error) {
	root, err := parts.Root()
	if err != nil {
		return nil, err
	}
	// Before the long builds: a machine that cannot carry the cluster should say so at once.
	if err := bed.Preflight(len(proxies)); err != nil {
		return nil, err
	}
	if err := host.Install(ctx, con, bed.Packages()...); err != nil {
		return nil, err
	}
	if _, err := parts.Build(ctx, con, parts.ControlPlane(), parts.Node(), parts.Workloads(), parts.Product()); err != nil {
		return nil, err
	}
	product, err := archive.BuildProduct(ctx, con)
	if err != nil {
		return nil, err
	}
	ours, err := archive.BuildBed(ctx, con)
	if err != nil {
		return nil, err
	}
	con.Step("starting a control plane and %d User-Mode Linux nodes (kube-proxy: %s)", len(proxies), strings.Join(proxies, ", "))
	e, images := &Env{con: con, root: root}, slices.Concat(ours, product)
	err = e.start(ctx, proxies, images)
	if err != nil && ctx.Err() == nil {
		// Seen once in some thirty starts: a node's virtual network link stands still for good. Nothing of nodedns runs yet.
		con.Step("the cluster did not start: %v", err)
		con.Step("once more, from the beginning")
		err = e.start(ctx, proxies, images)
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// start starts the cluster, or leaves nothing of it.
func (e *Env) start(ctx context.Context, proxies, images []string) (err error) {
	e.Cluster, err = bed.StartCluster(ctx, bed.ClusterConfig{
		Config: bed.Config{Console: e.con, Name: "cluster"}, Proxies: proxies, Images: images,
		Prepare: func(ctx context.Context, cp *bed.ControlPlane) error { return applyDNS(ctx, cp, e.root) },
	})
	if err != nil {
		return err
	}
	if err := e.waitDNS(ctx); err != nil {
		e.Stop()
		return err
	}
	return nil
}

func (e *Env) waitDNS(ctx context.Context) (err error) {
	if e.Client, err = e.Cluster.Client(); err != nil {
		return err
	}
	if err := e.WaitDeployment(ctx, "kube-system", "coredns", 1); err != nil {
		return err
	}
	for _, n := range e.Nodes {
		if err := e.waitService(ctx, n); err != nil {
			return err
		}
	}
	e.con.Step("cluster DNS answers on every node")
	return nil
}

// applyDNS creates the cluster DNS.
func applyDNS(ctx context.Context, cp *bed.ControlPlane, root string) error {
	text, err := manifests.ReadFile("manifests/kube-dns.yaml")
	if err != nil {
		return err
	}
	file := cp.Workspace().Path("kube-dns.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("writing the manifest of the cluster DNS: %w", err)
	}
	_, err = kubectl(ctx, cp, root, "apply", "-f", file)
	return err
}

// waitService waits until kube-proxy on the node has programmed the cluster DNS Service, which takes some seconds in
// these kernels.
func (e *Env) waitService(ctx context.Context, n *bed.Node) error {
	name := "kubernetes.default.svc." + bed.ClusterDomain + "."
	return host.Until(ctx, "the cluster DNS Service on "+n.Name, 90*time.Second, func(ctx context.Context) error {
		_, err := n.Agent.Run(ctx, "busybox", "timeout", "2", "busybox", "nslookup", "-type=a", name, bed.DNSServiceIP)
		return err
	})
}

// Kubectl runs the kubectl that was built with the control plane and returns what it printed.
func (e *Env) Kubectl(ctx context.Context, args ...string) (string, error) {
	return kubectl(ctx, e.ControlPlane, e.root, args...)
}

func kubectl(ctx context.Context, cp *bed.ControlPlane, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, cp.Program("kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cp.Kubeconfig())
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// WaitDeployment waits until a Deployment has that many ready Pods of its newest version.
func (e *Env) WaitDeployment(ctx context.Context, namespace, name string, replicas int32) error {
	err := host.Until(ctx, name+" to be ready", 120*time.Second, func(ctx context.Context) error {
		d, err := e.Client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration < d.Generation || s.UpdatedReplicas < replicas || s.ReadyReplicas < replicas {
			return fmt.Errorf("%d of %d Pods are ready", s.ReadyReplicas, replicas)
		}
		return nil
	})
	return e.explain(ctx, err, namespace)
}

// WaitDaemonSet waits until a DaemonSet has a ready Pod of its newest version on every node.
func (e *Env) WaitDaemonSet(ctx context.Context, namespace, name string) error {
	err := host.Until(ctx, name+" to be ready", 120*time.Second, func(ctx context.Context) error {
		d, err := e.Client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !rolledOut(d, int32(len(e.Nodes))) {
			return fmt.Errorf("%d of %d Pods are ready", d.Status.NumberReady, len(e.Nodes))
		}
		return nil
	})
	return e.explain(ctx, err, namespace)
}

func rolledOut(d *appsv1.DaemonSet, nodes int32) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedNumberScheduled >= nodes && s.NumberReady >= nodes
}

// explain adds to an error what the Pods of the namespace that are not ready say.
func (e *Env) explain(ctx context.Context, err error, namespace string) error {
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	pods, listErr := e.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	for _, p := range pods.Items {
		if podReady(&p) {
			continue
		}
		out, logErr := e.Kubectl(ctx, "-n", namespace, "logs", "--all-containers", "--tail=20", p.Name)
		events, eventErr := e.Kubectl(ctx, "-n", namespace, "events", "--for", "pod/"+p.Name)
		err = errors.Join(err, fmt.Errorf("log of %s:\n%s\nevents:\n%s", p.Name, out, events), logErr, eventErr)
	}
	return err
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Manifests is a folder of the project's manifests.
func (e *Env) Manifests(name string) string { return filepath.Join(e.root, "manifests", name) }
