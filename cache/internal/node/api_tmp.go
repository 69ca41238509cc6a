package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
)

// Holder is a socket of another process bound to a port of ours.
type Holder struct {
	// Network is udp or tcp, Addr what the socket is bound to.
	Network string
	Addr    netip.AddrPort
	UID     uint32
	// Inode names the socket in /proc/PID/fd.
	Inode uint32
	// Cgroup is the path of the owner's control group, empty where the kernel does not say.
	Cgroup string
	// PID and Command are those of the owner, zero where its process is not visible from here.
	PID     int
	Command string
}

var errNot = errors.New("not yet")

// Lock waits until this process is the node's one owner, or until ctx ends. The lock ends with the process.
func (n *Node) Lock(ctx context.Context) error { return errNot }

// Holders lists the sockets of other processes that could take questions meant for us: those bound to port on one of
// our addresses or on all addresses.
func (n *Node) Holders(port uint16) ([]Holder, error) { return nil, errNot }

// SetUp makes the addresses local: link, addresses, spare route. It starts out of service, whatever a predecessor left.
// A conflict with somebody else's interface or address is an error and leaves nothing half done; trouble of one family
// does not stop the other. Addrs says afterwards what there is to bind.
func (n *Node) SetUp(ctx context.Context) error { return errNot }

// Addrs are the addresses to bind: the local ones, and the ClusterIPs where the cache serves them too.
func (n *Node) Addrs() []netip.Addr { return nil }

// Arm installs rules, set and backstop. It retries for Config.Patience and then leaves the rest to Run: what does not
// succeed is logged and counted but no reason not to serve. It returns an error only if ctx ended.
func (n *Node) Arm(ctx context.Context) error { return errNot }

// Run keeps the node as it should be and in service while proof holds. When ctx ends it takes the node out of service
// and returns nil.
func (n *Node) Run(ctx context.Context, proof Proof) error { return errNot }

// TearDown removes what Config.Leave and the proxy mode say. Pods with the local address in their resolv.conf go on
// resolving unless Config.Leave is LeaveAll.
func (n *Node) TearDown(ctx context.Context) error { return errNot }

// Level is the guard level in force; zero before Arm.
func (n *Node) Level() Level { return 0 }

// InService says whether the rules steer clients to this cache.
func (n *Node) InService() bool { return false }

// Status is one line for people: mode, flavour, guard level, in service or not, problems.
func (n *Node) Status() string { return "" }

// Cleanup removes every rule, set, link and route of ours, of both flavours and families. It takes the lock and fails if
// a cache is running. link as in Config.
func Cleanup(ctx context.Context, link string, log *slog.Logger) error { return errNot }

// DetectMode asks kube-proxy at its metrics addresses (host:port, default 127.0.0.1:10249 and [::1]:10249) for its mode.
// There is no silent guess: without an answer it is an error that says what to do.
func DetectMode(ctx context.Context, at []string) (Mode, error) { return "", errNot }
