package bed

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nodedns/nodedns/e2e/console"
)

// Addresses of every test cluster. Clusters do not meet, since each has its own network namespace, so they are constant.
const (
	// ControlPlaneIP is the address of the API server as the nodes see it.
	ControlPlaneIP = "172.30.0.1"
	// PodCIDR holds a /24 for each node.
	PodCIDR = "10.244.0.0/16"
	// ServiceCIDR is the range of ClusterIPs.
	ServiceCIDR = "10.96.0.0/16"
	// DNSServiceIP is the ClusterIP that kubelet hands out.
	DNSServiceIP = "10.96.0.10"
	// ClusterDomain is the domain of the cluster's names.
	ClusterDomain = "cluster.local"
	// apiPort is the API server's port at ControlPlaneIP.
	apiPort = 6443
)

// Config says what control plane to start.
type Config struct {
	// Console tells a person what happens; nil says nothing.
	Console *console.Console
	// Name is part of the run folder's name; empty means "cp".
	Name string
	// APIServerOnly leaves out the controller manager and the scheduler: no ServiceAccount, Endpoints or bound Pods come
	// by themselves then, and the start takes about two seconds less.
	APIServerOnly bool
	// APIServerArgs are added to the API server's arguments.
	APIServerArgs []string
	// ControllerArgs are added to the controller manager's arguments.
	ControllerArgs []string
	// Audit turns on the audit log of requests and their annotations (level Metadata).
	Audit bool
	// Nodes is the number of nodes there will be links and routes for; 0 needs nothing of the kernel but namespaces.
	Nodes int
}

// Validate returns all problems joined.
func (c Config) Validate() error {
	var problems []error
	if c.Nodes < 0 || c.Nodes > 9 {
		problems = append(problems, fmt.Errorf("nodes: %d is not between 0 and 9", c.Nodes))
	}
	if c.APIServerOnly && c.Nodes > 0 {
		problems = append(problems, errors.New("nodes need a controller manager and a scheduler"))
	}
	return errors.Join(problems...)
}

// nodeIP is the address of node n, counted from 1.
func nodeIP(n int) netip.Addr { return netip.AddrFrom4([4]byte{172, 30, 0, byte(10 + n)}) }

// nodePods is the range of the Pods of node n.
func nodePods(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(n), 0}), 24)
}

// nodeName is the name of node n.
func nodeName(n int) string { return fmt.Sprintf("node%d", n) }
