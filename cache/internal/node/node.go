// Package node owns everything of the cache that lives in the host's kernel: the link and its addresses, the rules that
// steer DNS traffic to the cache, the guard that ends this when the cache ends, and the backstop that sends the traffic
// to cluster DNS meanwhile. It knows no DNS: whether the cache answers, a Proof says.
//
// The verbs come in this order:
//
//	n, err := node.New(cfg, log, metrics)
//	err = n.Lock(ctx)               // one owner a node; without it nothing is touched
//	held, err := n.Holders(53)      // who else has the port, also through SO_REUSEPORT
//	err = n.SetUp(ctx)              // link, addresses, spare local route
//	…                               // the caller binds n.Addrs()
//	err = n.Arm(ctx)                // rules, set, backstop; from here a socket with ProbeMark reaches the cache
//	err = n.Run(ctx, proof)         // in service while proof holds; out of it before Run returns
//	…                               // the caller lets its sockets run dry and closes them
//	err = n.TearDown(ctx)           // what the proxy mode says
//
// A process killed between any two of these leaves a node that resolves, and the next start repairs it. The subcommand
// cleanup calls the function Cleanup alone.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Proof says whether this process answers.
type Proof interface {
	// Prove returns nil if every worker of the cache answered just now. It must not depend on any upstream: an outage of
	// cluster DNS must not take a cache with stale answers out of service. It is called each Config.Renew, one call at a
	// time, with a deadline of less than the lease. What wraps ErrStuck ends service at once; after other errors, which may be
	// a lost packet or a slow moment, the lease runs out unless a later proof succeeds.
	Prove(ctx context.Context) error
}

// ErrStuck says that a part of the cache has stood still for so long that the questions it takes are lost.
var ErrStuck = errors.New("a part of the cache is stuck")

// Node sets up one node. Its verbs are called one after the other; the readers (Addrs, Level, Status, …) at any time.
type Node struct {
	cfg      Config
	log      *slog.Logger
	m        *Metrics
	problems *problems
	kernel   kernel
	links    links
	kind     string // of the link we make

	// work is held while the host is looked at and changed.
	work  sync.Mutex
	sides []*side

	mu        sync.Mutex
	lock      net.Listener
	mode      Mode
	addrs     []netip.Addr // local now; to be bound
	endpoints map[family][]netip.AddrPort
	inService bool
	steer     bool // LevelPlain: the rules that steer are wanted
}

// New checks cfg and returns a Node that has touched nothing yet. A nil metrics counts nowhere.
func New(cfg Config, log *slog.Logger, metrics *Metrics) (*Node, error) {
	return newNode(cfg, log, metrics, host{kernelLinks: kernelLinks{kind: kindOurs}}, kindOurs)
}

func newNode(cfg Config, log *slog.Logger, metrics *Metrics, k kernel, kind string) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if metrics == nil {
		metrics = NewMetrics(nil)
	}
	n := &Node{cfg: cfg.withDefaults(), log: log, m: metrics, kernel: k, links: k, kind: kind, mode: cfg.Mode}
	n.problems = newProblems(log, metrics)
	n.m.mode.WithLabelValues(string(n.mode)).Set(1)
	return n, nil
}

// served are the addresses the cache is to answer on: the local ones, and where no IPVS holds them the ClusterIPs.
func (n *Node) served() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.servedLocked()
}

func (n *Node) servedLocked() []netip.Addr {
	out := n.kept()
	if n.mode == IPVS {
		return out
	}
	for _, a := range n.cfg.ClusterIP {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// steered are those of them that are bound. After a change of kube-proxy's mode, or with leftovers of IPVS on the node, the
// cache is to answer on a ClusterIP with its next start, but does not yet.
func (n *Node) steered() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.steeredLocked()
}

func (n *Node) steeredLocked() []netip.Addr {
	out := n.servedLocked()
	if n.addrs == nil { // not set up yet
		return out
	}
	return slices.DeleteFunc(out, func(a netip.Addr) bool { return !slices.Contains(n.addrs, a) })
}

// kept are the addresses that Pods have in their resolv.conf: they stay until cleanup.
func (n *Node) kept() []netip.Addr {
	var out []netip.Addr
	for _, a := range n.cfg.Local {
		// As the upstream cache is told to, both may be listed; the ClusterIP is no address of our own.
		if !slices.Contains(n.cfg.ClusterIP, a) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// SetUp makes the addresses local: link, addresses, spare route. It starts out of service, whatever a predecessor left.
// A conflict with somebody else's interface or address is an error and leaves nothing half done; trouble of one family
// does not stop the other. Addrs says afterwards what there is to bind.
func (n *Node) SetUp(ctx context.Context) error {
	n.work.Lock()
	defer n.work.Unlock()
	served := n.served()
	if n.cfg.Mode == IPVS {
		for _, a := range n.cfg.Local {
			if slices.Contains(n.cfg.ClusterIP, a) {
				n.log.Warn("not serving the ClusterIP: with kube-proxy in IPVS mode it belongs to kube-ipvs0", "address", a.String())
			}
		}
	}
	if n.cfg.SkipLink {
		n.setAddrs(served)
		return nil
	}
	served = n.withoutLeftovers(served)
	if err := n.checkConflicts(served); err != nil {
		return err
	}
	// A predecessor that was killed may have left the lease on for some seconds.
	for _, fam := range families() {
		for _, a := range fam.of(served) {
			if err := n.kernel.DelSet(fam.setName(n.cfg.Link), a); err != nil {
				n.log.Debug("ending a predecessor's lease", "address", a.String(), "error", err.Error())
			}
		}
	}
	n.foreArm(ctx)
	local := n.applyLink(served, true)
	// Afterwards: an old local address may be the source of the host's questions to a ClusterIP until then.
	if err := n.dropOld(served); err != nil {
		_ = n.problems.fail(stepAddress, 0, err)
	}
	n.setAddrs(local)
	if len(local) == 0 {
		return fmt.Errorf("setting up link %s: none of %v is local: %s", n.cfg.Link, served, strings.Join(n.problems.list(), "; "))
	}
	return ctx.Err()
}

// withoutLeftovers drops ClusterIPs that a kube-proxy which was in IPVS mode before left on kube-ipvs0, with services
// that still take the traffic and that nobody keeps fresh.
func (n *Node) withoutLeftovers(served []netip.Addr) []netip.Addr {
	held, err := n.links.Holders()
	if err != nil {
		return served
	}
	var out []netip.Addr
	var errs []error
	for _, a := range served {
		if slices.Contains(n.cfg.ClusterIP, a) && slices.Contains(held[a], ipvsLink) {
			errs = append(errs, conflict("kube-proxy is in %s mode, but %s is still on %s with a frozen IPVS service that takes its traffic; "+
				"not serving that address: run kube-proxy --cleanup or reboot the node", n.cfg.Mode, a, ipvsLink))
			continue
		}
		out = append(out, a)
	}
	_ = n.problems.note(stepForeign, 0, errors.Join(errs...))
	return out
}

// ipvsLink is where kube-proxy puts ClusterIPs in IPVS mode.
const ipvsLink = "kube-ipvs0"

func (n *Node) setAddrs(addrs []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addrs = append([]netip.Addr{}, addrs...) // not nil
}

// Addrs are the addresses to bind: the local ones, and the ClusterIPs where the cache serves them too.
func (n *Node) Addrs() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.addrs)
}

// Mode is kube-proxy's mode as last seen.
func (n *Node) Mode() Mode {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mode
}

// Level is the guard level in force, of the weaker family if there are two; zero before Arm.
func (n *Node) Level() Level {
	n.mu.Lock()
	defer n.mu.Unlock()
	var lowest Level
	for i, s := range n.sides {
		if i == 0 || s.level < lowest {
			lowest = s.level
		}
	}
	return lowest
}

// InService says whether the rules steer clients to this cache.
func (n *Node) InService() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.inService
}

func (n *Node) setInService(yes bool) {
	n.mu.Lock()
	was := n.inService
	n.inService = yes
	n.mu.Unlock()
	n.m.serving(yes)
	if was != yes {
		n.log.Info("service changed", "in_service", yes)
	}
}

// Problems lists the steps of setting up the node that do not succeed at present.
func (n *Node) Problems() []string { return n.problems.list() }

// Status is one line for people: mode, flavour, guard level, in service or not, problems.
func (n *Node) Status() string {
	level, list := n.Level(), n.problems.list()
	n.mu.Lock()
	defer n.mu.Unlock()
	var flavours []string
	for _, s := range n.sides {
		if s.flavour != "" && !slices.Contains(flavours, string(s.flavour)) {
			flavours = append(flavours, string(s.flavour))
		}
	}
	problems := "none"
	if len(list) > 0 {
		problems = strings.Join(list, " | ")
	}
	return fmt.Sprintf("mode=%s iptables=%s guard=%s in_service=%t problems: %s",
		n.mode, strings.Join(flavours, ","), level, n.inService, problems)
}
