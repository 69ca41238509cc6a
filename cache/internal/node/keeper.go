package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Times of the keeper.
const (
	glance     = time.Second           // between two looks at what costs next to nothing
	settle     = 20 * time.Millisecond // after an event: changes come in swarms
	proxyEvery = 10 * time.Second      // between two looks at kube-proxy
)

// Run keeps the node as it should be and in service while proof holds. When ctx ends it takes the node out of service
// and returns nil.
func (n *Node) Run(ctx context.Context, proof Proof) error {
	var wg sync.WaitGroup
	wg.Go(func() { n.keep(ctx) })
	n.lead(ctx, proof)
	wg.Wait()
	return nil
}

// lead renews the lease while the proof holds. Nothing here waits for iptables, except at LevelPlain.
func (n *Node) lead(ctx context.Context, proof Proof) {
	tick := time.NewTicker(n.cfg.Renew)
	defer tick.Stop()
	defer n.leave()
	n.m.serving(false)
	var last time.Time // of the last renewal
	for {
		// A proof that takes longer than this comes too late to renew in time.
		proving, cancel := context.WithTimeout(ctx, n.cfg.Lease-n.cfg.Renew)
		err := proof.Prove(proving)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			n.m.unproved.Inc()
			n.log.Warn("the cache did not prove that it answers; not renewing the lease", "error", err.Error())
		} else if n.renew() {
			if last.IsZero() {
				n.problems.ok(stepFlows, 0) // those that could not be forgotten lead to a cache that answers
			}
			last = time.Now()
			n.setInService(true)
		}
		if !last.IsZero() && (errors.Is(err, ErrStuck) || time.Since(last) >= n.cfg.Lease) {
			last = time.Time{}
			n.drop() // where the kernel keeps the time this is no news to it
			n.setInService(false)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// leases gives the leases with their sides' addresses.
func (n *Node) leases() []*side {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*side
	for _, s := range n.sides {
		if s.lease != nil {
			out = append(out, &side{fam: s.fam, lease: s.lease, tracked: s.tracked})
		}
	}
	return out
}

// renew renews the lease of every family; false if none could be.
func (n *Node) renew() bool {
	var errs []error
	done := n.cfg.SkipRules // without rules clients come to us by the address alone
	addrs := n.steered()
	for _, s := range n.leases() {
		err := s.lease.Renew(s.fam.of(addrs), n.cfg.Lease)
		if errors.Is(err, unix.ENOENT) {
			// Somebody destroyed the set; rules that refer to it cannot be there either.
			if err = n.kernel.EnsureSet(s.fam.setName(n.cfg.Link), s.fam, n.cfg.Lease); err == nil {
				n.m.repairs.WithLabelValues("set").Inc()
				err = s.lease.Renew(s.fam.of(addrs), n.cfg.Lease)
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = true
		n.m.renewals.Inc()
	}
	_ = n.problems.note(stepLease, 0, errors.Join(errs...))
	return done
}

// drop ends the lease of every family.
func (n *Node) drop() {
	for _, s := range n.leases() {
		if err := s.lease.Drop(s.fam.of(n.served())); err != nil {
			_ = n.problems.fail(stepLease, s.fam, err)
		}
	}
	n.forget(unix.IPPROTO_UDP)
}

func (n *Node) leave() {
	n.drop()
	n.setInService(false)
}

// keep puts back what is taken away, until ctx ends.
func (n *Node) keep(ctx context.Context) {
	watch, err := n.links.Watch(ctx)
	if err != nil {
		n.log.Warn("no events from the kernel; looking each second instead", "error", err.Error())
	}
	tick := time.NewTicker(glance)
	defer tick.Stop()
	var asked time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-watch:
			if !ok {
				watch = nil
				continue
			}
			if !pause(ctx, settle) {
				return
			}
			n.keepLink()
		case <-tick.C:
			if now := time.Now(); now.Sub(asked) >= proxyEvery {
				asked = now
				n.keepProxy(ctx)
			}
			n.keepLink()
			n.keepRules(ctx)
		}
	}
}

// pause waits; false if ctx ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// keepLink puts link, addresses and routes back.
func (n *Node) keepLink() {
	if n.cfg.SkipLink {
		return
	}
	n.work.Lock()
	defer n.work.Unlock()
	// Only what is bound: an address that could not be set up at start has no socket now.
	n.applyLink(n.Addrs(), false)
}

// keepRules looks at each table that may have changed, or was not looked at for long, and puts back what is missing.
func (n *Node) keepRules(ctx context.Context) {
	if n.cfg.SkipRules {
		return
	}
	n.work.Lock()
	defer n.work.Unlock()
	for _, s := range n.sides {
		if s.lease != nil {
			repaired, err := s.lease.Check()
			if repaired {
				n.m.repairs.WithLabelValues("owner").Inc()
			}
			_ = n.problems.note(stepOwner, s.fam, err)
		}
		if s.tables == nil || s.level == 0 {
			if now := time.Now(); !now.Before(s.retry) {
				_ = n.armSide(ctx, s) // noted step by step
				s.pause = min(max(2*s.pause, glance), time.Minute)
				s.retry = now.Add(s.pause)
			}
			continue
		}
		var rules []rule
		for _, t := range ourTables() {
			if !n.due(s, t.table) {
				continue
			}
			if rules == nil {
				rules = n.want(s, false).rules()
			}
			n.checkTable(ctx, s, t, rules)
		}
	}
}

// due says whether a table is to be looked at now.
func (n *Node) due(s *side, table string) bool {
	known, now := s.seen[table], time.Now()
	if known.generation == "" || now.Sub(known.full) >= n.cfg.Sync {
		return true
	}
	generation, err := s.tables.Generation(table)
	return err != nil || generation != known.generation
}

// checkTable looks at one table, if there is CPU time for it.
func (n *Node) checkTable(ctx context.Context, s *side, t tableChains, rules []rule) {
	known := s.seen[t.table]
	if !known.allowance.has(time.Now(), n.part()) {
		return
	}
	begin := cpuTime()
	_ = n.applyTable(ctx, s, t, rules) // noted there
	spent := cpuTime() - begin
	n.m.checkTimes.Observe(spent.Seconds())
	known.allowance.spend(spent)
	n.log.Debug("looked at rules", "family", s.fam.String(), "table", t.table, "cpu", spent, "allowance", known.allowance.left)
	known.full = time.Now() // also after a failure: a table that is complete is due by its generation
}

// allowance is CPU time for looking at rules, 1 % of a core in all: a quarter for each of our tables and for reading
// kube-proxy's rules, saved up to two seconds' worth. A fault is repaired at once; a table with tens of thousands of rules
// that change all the time is looked at less often, and puts off no look at the others.
type allowance struct {
	left time.Duration
	at   time.Time
}

const allowanceMost = 2 * time.Second

// part is by how much of the time that passes each allowance grows.
func (n *Node) part() time.Duration { return 4 * 100 * time.Duration(max(len(n.sides), 1)) }

func (a *allowance) has(now time.Time, part time.Duration) bool {
	if a.at.IsZero() {
		a.left = allowanceMost
	} else {
		a.left = min(allowanceMost, a.left+now.Sub(a.at)/part)
	}
	a.at = now
	return a.left > 0
}

func (a *allowance) spend(d time.Duration) { a.left -= d }

// cpuTime is the CPU time of the commands that have ended; the time of our own threads is small beside it and cannot be
// told apart from the cache's.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// keepProxy follows what kube-proxy does: its mode, and the endpoints it knows.
func (n *Node) keepProxy(ctx context.Context) {
	if len(n.cfg.ModeAt) > 0 {
		n.keepMode(ctx)
	}
	n.work.Lock()
	defer n.work.Unlock()
	n.keepEndpoints(ctx, n.endpointsDue)
}

// keepMode asks kube-proxy for its mode again and follows a change.
func (n *Node) keepMode(ctx context.Context) {
	mode, err := DetectMode(ctx, n.cfg.ModeAt)
	if err != nil || mode == n.Mode() {
		return // a kube-proxy that restarts does not answer: the last answer holds
	}
	n.work.Lock()
	defer n.work.Unlock()
	before := n.leases()
	n.mu.Lock()
	was, bound := n.mode, n.addrs
	n.mode = mode
	served := n.servedLocked()
	// What is bound can only become less while running; more comes with the next start.
	n.addrs = []netip.Addr{}
	var lost []netip.Addr
	for _, a := range bound {
		if slices.Contains(served, a) {
			n.addrs = append(n.addrs, a)
		} else {
			lost = append(lost, a)
		}
	}
	n.mu.Unlock()
	n.m.mode.WithLabelValues(string(was)).Set(0)
	n.m.mode.WithLabelValues(string(mode)).Set(1)
	n.log.Warn("kube-proxy changed its mode; the backstop follows now, new addresses to serve come with the next start",
		"was", string(was), "is", string(mode))
	for _, s := range before {
		if err := s.lease.Drop(s.fam.of(lost)); err != nil {
			_ = n.problems.fail(stepLease, s.fam, err)
		}
	}
	for _, s := range n.sides {
		s.stale()
	}
	if n.cfg.SkipLink {
		return
	}
	for _, a := range lost {
		_ = n.problems.note(stepAddress, familyOf(a), n.dropAddr(a))
	}
}
