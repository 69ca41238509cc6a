package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodedns/nodedns/e2e/agent"
	"github.com/nodedns/nodedns/e2e/host"
)

// prepare runs the container runtime and imports the images.
func (n *Node) prepare(ctx context.Context, archives []string) error {
	cni := "mkdir -p /run/cni/net.d && cp " + agent.Shared + "/10-bridge.conflist /run/cni/net.d/"
	if _, err := n.Agent.Shell(ctx, cni); err != nil {
		return fmt.Errorf("configuring the Pod network of %s: %w", n.Name, err)
	}
	if err := n.daemon(ctx, "containerd", "containerd", "-c", agent.Shared+"/containerd.toml"); err != nil {
		return err
	}
	err := host.Until(ctx, "containerd on "+n.Name, 60*time.Second, func(ctx context.Context) error {
		_, err := n.Agent.Run(ctx, "ctr", "version")
		return err
	}, n.kernel)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, n.Log("containerd"))
	}
	return n.Import(ctx, archives...)
}

// Import makes image archives (from the folders the cluster was started with) known to the node's container runtime.
func (n *Node) Import(ctx context.Context, archives ...string) error {
	for _, a := range archives {
		folder := slices.Index(n.images, filepath.Dir(a))
		if folder < 0 {
			return fmt.Errorf("importing %s: %s does not see its folder", a, n.Name)
		}
		inside := filepath.Join(agent.Images, strconv.Itoa(folder), filepath.Base(a))
		if _, err := n.Agent.Run(ctx, "ctr", "-n", "k8s.io", "images", "import", "--local", "--snapshotter", "overlayfs", inside); err != nil {
			return fmt.Errorf("importing %s on %s: %w", filepath.Base(a), n.Name, err)
		}
	}
	return nil
}

// startKubelet starts kubelet, which registers the node.
func (n *Node) startKubelet(ctx context.Context) error {
	return n.daemon(ctx, "kubelet", "kubelet", "--config="+agent.Shared+"/kubelet.yaml",
		"--kubeconfig="+agent.Shared+"/"+n.Name+".kubeconfig", "--hostname-override="+n.Name, "--node-ip="+n.IP.String(),
		"--root-dir=/var/lib/kubelet", "--v=2")
}

// StartProxy starts kube-proxy in a mode (ipvs, iptables), in place of the one that runs.
func (n *Node) StartProxy(ctx context.Context, mode string) error {
	if err := os.WriteFile(filepath.Join(n.dir, "kube-proxy.yaml"), n.proxySettings(mode), 0o600); err != nil {
		return fmt.Errorf("writing the settings of kube-proxy: %w", err)
	}
	return n.daemon(ctx, "kube-proxy", "kube-proxy", "--config="+agent.Shared+"/kube-proxy.yaml", "--v=2")
}

// ProxyMode asks kube-proxy for its mode.
func (n *Node) ProxyMode(ctx context.Context) (string, error) {
	mode, err := n.Agent.Run(ctx, "busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:10249/proxyMode")
	if err != nil {
		return "", fmt.Errorf("asking kube-proxy on %s: %w", n.Name, err)
	}
	return strings.TrimSpace(mode), nil
}

// Log returns the last lines of a program's log on the node.
func (n *Node) Log(program string) string { return host.Tail(filepath.Join(n.dir, program+".log"), 15) }

// Pids lists the processes on the node whose program has the given file name.
func (n *Node) Pids(ctx context.Context, program string) ([]int, error) {
	out, err := n.Agent.Run(ctx, "busybox", "pidof", program)
	if exit, ok := errors.AsType[*agent.ExitError](err); ok && exit.Code == 1 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for %s on %s: %w", program, n.Name, err)
	}
	var pids []int
	for f := range strings.FieldsSeq(out) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("looking for %s on %s: %w", program, n.Name, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// daemonLimit is how long a node may take to stop a program and start it again, before it counts as cut off.
const daemonLimit = 40 * time.Second

func (n *Node) daemon(ctx context.Context, name string, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, daemonLimit, fmt.Errorf("no answer within %s", daemonLimit))
	defer cancel()
	err := n.Agent.StartDaemon(ctx, agent.Daemon{Name: name, Args: args, Log: agent.Shared + "/" + name + ".log"})
	if err != nil {
		return fmt.Errorf("on %s: %w; the last lines of its console:\n%s", n.Name, err, host.Tail(filepath.Join(n.dir, "console.log"), 10))
	}
	return nil
}
