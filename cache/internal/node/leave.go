package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// TearDown removes what Config.Leave and the proxy mode say. Pods with the local address in their resolv.conf go on
// resolving unless Config.Leave is LeaveAll: address, spare route and backstop stay. It comes after Run.
func (n *Node) TearDown(ctx context.Context) error {
	n.work.Lock()
	defer n.work.Unlock()
	n.forget(unix.IPPROTO_UDP, unix.IPPROTO_TCP) // also what answers under way have opened since the lease ended
	var errs []error
	if n.cfg.Leave == LeaveNothing {
		return n.closeLeases(func(s *side) bool { return s.level == LevelOwner })
	}
	for _, s := range n.sides {
		s.expectChanges()
	}
	// Addresses first: in IPv6 a ClusterIP that is local is the source of the host's own questions, and needs its masquerade.
	errs = append(errs, n.leaveAddrs())
	for _, s := range n.sides {
		// The rules go before the set they refer to. By now none of them steers anything: the lease is off.
		errs = append(errs, n.leaveTables(ctx, s))
	}
	errs = append(errs, n.closeLeases(func(*side) bool { return true }))
	return errors.Join(errs...)
}

// forget ends the tracked flows to the cache, so that the next questions of their clients are the backstop's. Those of UDP end
// with the lease; TCP connections are served until the sockets are closed.
func (n *Node) forget(protocols ...uint8) {
	for _, s := range n.leases() {
		if s.tracked {
			_ = n.problems.note(stepFlows, 0, n.kernel.Forget(s.fam, s.fam.of(n.served()), n.cfg.Port, protocols...))
		}
	}
}

// closeLeases closes the leases of those sides.
func (n *Node) closeLeases(which func(*side) bool) error {
	var errs []error
	for _, s := range n.sides {
		if s.lease != nil && which(s) {
			errs = append(errs, s.lease.Close())
		}
	}
	return errors.Join(errs...)
}

// leaveAddrs takes away the addresses that do not stay. With the ClusterIP no longer local, questions to it are
// kube-proxy's again.
func (n *Node) leaveAddrs() error {
	if n.cfg.SkipLink {
		return nil
	}
	kept := n.kept()
	var errs []error
	for _, a := range n.served() {
		if n.cfg.Leave == LeaveAll || !slices.Contains(kept, a) {
			errs = append(errs, n.dropAddr(a))
		}
	}
	if n.cfg.Leave == LeaveAll {
		errs = append(errs, n.links.DelLink(n.cfg.Link))
	}
	return errors.Join(errs...)
}

// leaveTables leaves of the rules what stays when the cache leaves, last table first.
func (n *Node) leaveTables(ctx context.Context, s *side) error {
	var rules []rule
	if n.cfg.Leave != LeaveAll {
		rules = n.want(s, true).rules()
	}
	var errs []error
	for _, t := range slices.Backward(ourTables()) {
		errs = append(errs, n.applyTable(ctx, s, t, rules))
	}
	return errors.Join(errs...)
}

// cleanupWait is how long Cleanup waits for the lock: long enough for a process that is just ending.
const cleanupWait = 2 * time.Second

// Cleanup removes every rule, set, link and route of ours, of both flavours and families. It takes the lock, and fails
// if a cache is running. link is as in Config.
func Cleanup(ctx context.Context, link string, log *slog.Logger) error {
	return cleanup(ctx, link, log, host{kernelLinks: kernelLinks{kind: kindOurs}}, kindOurs)
}

func cleanup(ctx context.Context, link string, log *slog.Logger, k kernel, kind string) error {
	if link == "" {
		link = DefaultLink
	}
	l, err := lockFor(ctx, cleanupWait)
	if err != nil {
		return fmt.Errorf("cleaning up: a cache is running on this node, or somebody else has its lock; end that first: %w", err)
	}
	defer func() { _ = l.Close() }()
	n := &Node{
		cfg: Config{Link: link}.withDefaults(), log: log, m: NewMetrics(nil), kernel: k, links: k, kind: kind,
	}
	n.problems = newProblems(log, n.m)
	var errs []error
	for _, fam := range families() {
		for _, f := range []Flavour{NFT, Legacy} {
			errs = append(errs, n.cleanRules(ctx, fam, f))
		}
		if err := k.DestroySet(fam.setName(link)); err != nil && !unsupported(err) {
			errs = append(errs, fmt.Errorf("removing set %s: %w", fam.setName(link), err))
		}
	}
	return errors.Join(append(errs, n.cleanLink())...)
}

func lockFor(ctx context.Context, wait time.Duration) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return lock(ctx, func(string) {})
}

// cleanRules removes the rules of one family and flavour.
func (n *Node) cleanRules(ctx context.Context, fam family, f Flavour) error {
	if !n.kernel.InUse(fam, f) {
		return nil
	}
	t, _, err := n.kernel.Tables(fam, f, n.cfg.LockWait)
	if err != nil {
		return fmt.Errorf("cleaning %s rules of flavour %s: %w", fam, f, explain(err))
	}
	s := newSide(fam)
	s.tables = t
	var errs []error
	for _, tc := range slices.Backward(ourTables()) {
		if err := n.changeTable(ctx, s, tc, nil); err != nil && !gone(err) {
			errs = append(errs, fmt.Errorf("cleaning %s table %s: %w", fam, tc.table, err))
		}
	}
	for _, table := range []string{"raw", "nat"} {
		if err := n.patiently(ctx, func() error { return t.EndTry(table) }); err != nil && !gone(err) {
			errs = append(errs, fmt.Errorf("cleaning %s table %s: %w", fam, table, err))
		}
	}
	return errors.Join(errs...)
}

// cleanLink removes our routes, and the link unless somebody else answers on its addresses.
func (n *Node) cleanLink() error {
	spares, err := n.links.Spares()
	if err != nil {
		return fmt.Errorf("listing spare local routes: %w", err)
	}
	l, err := n.links.Link(n.cfg.Link)
	if err != nil && !errors.Is(err, errNoLink) {
		return fmt.Errorf("looking at link %s: %w", n.cfg.Link, err)
	}
	if err == nil && l.Kind == n.kind {
		if err := n.inUse(l.Addrs); err != nil {
			return err
		}
	}
	var errs []error
	for _, a := range spares {
		if err := n.links.DelSpare(a); err != nil {
			errs = append(errs, fmt.Errorf("removing the spare local route of %s: %w", a, err))
		}
	}
	if err == nil && l.Kind == n.kind {
		if err := n.links.DelLink(n.cfg.Link); err != nil {
			errs = append(errs, fmt.Errorf("removing link %s: %w", n.cfg.Link, err))
		}
	}
	return errors.Join(errs...)
}

// inUse says who listens on one of addrs itself: upstream node-local-dns uses a link of the same name.
func (n *Node) inUse(addrs []netip.Addr) error {
	held, err := holders(53)
	if err != nil {
		return nil //nolint:nilerr // without the diag module nobody can tell; the lock has been taken
	}
	for _, h := range held {
		if slices.Contains(addrs, h.Addr.Addr().Unmap()) {
			return conflict("link %s stays: another DNS server answers on it (%s)", n.cfg.Link, h)
		}
	}
	return nil
}
