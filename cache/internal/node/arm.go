package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// side is what the node has for one family.
type side struct {
	fam     family
	tables  tables // nil while there is no iptables for the family
	flavour Flavour
	level   Level // zero while nothing steers
	tracked bool
	notrack []string // the target that keeps packets out of connection tracking
	lease   lease
	// generation is that of the tables when they were last seen complete.
	generation string
	// armed says that the rules were complete once, so that what is missing now was taken away.
	armed bool
	// doubted are chains that do not list what was put into them.
	doubted map[chainKey]bool
}

// Arm installs rules, set and backstop. It retries for Config.Patience and then leaves the rest to Run: what does not
// succeed is logged and counted but no reason not to serve. It returns an error only if ctx ended.
func (n *Node) Arm(ctx context.Context) error {
	if n.cfg.SkipRules {
		n.log.Info("no rules, as configured: there is neither guard nor backstop")
		return nil
	}
	n.makeSides()
	n.work.Lock()
	defer n.work.Unlock()
	patience, cancel := context.WithTimeout(ctx, n.cfg.Patience)
	defer cancel()
	for _, s := range n.sides {
		if err := n.armSide(patience, s); err != nil {
			n.log.Error("rules are not complete; the keeper goes on trying", "family", s.fam.String(), "error", err.Error())
		}
	}
	return ctx.Err()
}

// makeSides makes one side for each family with addresses.
func (n *Node) makeSides() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sides != nil {
		return
	}
	for _, fam := range families() {
		if len(fam.of(n.servedLocked())) > 0 {
			n.sides = append(n.sides, &side{fam: fam, doubted: map[chainKey]bool{}})
		}
	}
}

// armSide brings one family as far as it goes. It may be called again at any time.
func (n *Node) armSide(ctx context.Context, s *side) error {
	var errs []error
	if s.tables == nil {
		t, flavour, err := n.kernel.Tables(s.fam, n.cfg.Flavour, n.cfg.LockWait)
		if n.problems.note(stepFlavour, s.fam, explain(err)) == nil {
			n.mu.Lock()
			s.tables, s.flavour = t, flavour
			n.mu.Unlock()
		} else {
			errs = append(errs, err)
		}
	}
	if s.level == 0 {
		if err := n.chooseGuard(ctx, s); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, n.applyRules(ctx, s))
	return errors.Join(errs...)
}

// chooseGuard tries the levels, best first, and keeps the first that this kernel has.
func (n *Node) chooseGuard(ctx context.Context, s *side) error {
	set := s.fam.setName(n.cfg.Link)
	var why []any
	missing := func(l Level, err error) { why = append(why, l.String(), err.Error()) }
	use := func(l Level, le lease) error {
		n.mu.Lock()
		s.level, s.lease = l, le
		n.mu.Unlock()
		for _, each := range levels() {
			n.m.guard.WithLabelValues(each.String()).Set(0)
		}
		n.m.guard.WithLabelValues(n.Level().String()).Set(1)
		n.log.Info("guard level chosen", "family", s.fam.String(), "level", l.String(), "iptables", string(s.flavour))
		if len(why) > 0 {
			n.log.Info("better guard levels are not to be had here", why...)
		}
		return nil
	}
	s.tracked = n.cfg.Tracked
	if n.cfg.Guard >= LevelOwner && !s.tracked {
		le, err := n.kernel.Owner(owned{
			fam: s.fam, served: s.fam.of(n.served()), port: n.cfg.Port, health: n.cfg.HealthPort, ttl: n.cfg.Lease,
		})
		if err == nil {
			n.problems.ok(stepOwner, s.fam)
			return use(LevelOwner, le)
		}
		missing(LevelOwner, err)
	}
	if s.tables == nil {
		return errors.New("choosing a guard: there is no iptables")
	}
	if err := n.chooseTarget(ctx, s); err != nil {
		return err
	}
	table, target := "raw", s.notrack
	if s.tracked {
		table, target = "nat", []string{"-j", "ACCEPT"}
	}
	if n.cfg.Guard >= LevelLease {
		err := n.kernel.EnsureSet(set, s.fam, n.cfg.Lease)
		if err != nil {
			missing(LevelSocket, fmt.Errorf("making set %s: %w", set, err))
		}
		for _, l := range []Level{LevelSocket, LevelLease} {
			if err != nil || n.cfg.Guard < l {
				continue
			}
			w := want{set: set, level: l}
			tryErr := n.patiently(ctx, func() error { return s.tables.Try(table, append(w.guard("PREROUTING"), target...)...) })
			if tryErr == nil {
				n.problems.ok(stepSet, s.fam)
				return use(l, &setLease{sets: n.kernel, name: set, fam: s.fam, ttl: n.cfg.Lease})
			}
			if ctx.Err() != nil {
				return tryErr // the lock was busy all the time: that says nothing about the kernel
			}
			missing(l, tryErr)
		}
	}
	return use(LevelPlain, &plainLease{apply: func(steer bool) error { return n.steerPlain(s, steer) }})
}

// chooseTarget finds how this kernel keeps packets out of connection tracking; without any way they stay in.
func (n *Node) chooseTarget(ctx context.Context, s *side) error {
	if s.tracked {
		return nil
	}
	var errs []error
	for _, target := range [][]string{{"-j", "CT", "--notrack"}, {"-j", "NOTRACK"}} {
		err := n.patiently(ctx, func() error { return s.tables.Try("raw", target...) })
		if err == nil {
			s.notrack = target
			n.problems.ok(stepRaw, s.fam)
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	_ = n.problems.fail(stepRaw, s.fam, fmt.Errorf("this node cannot keep traffic out of connection tracking, so it stays tracked: %w", errors.Join(errs...)))
	s.tracked = true
	return nil
}

// steerPlain is the switch of LevelPlain.
func (n *Node) steerPlain(s *side, steer bool) error {
	n.mu.Lock()
	n.steer = steer
	n.mu.Unlock()
	n.work.Lock()
	defer n.work.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 4*n.cfg.LockWait)
	defer cancel()
	return n.applyRules(ctx, s)
}

// want gives what the rules of s are made from. left asks for what stays when the cache leaves.
func (n *Node) want(s *side, left bool) want {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := want{
		set: s.fam.setName(n.cfg.Link), mode: n.mode,
		served: s.fam.of(n.servedLocked()), kept: s.fam.of(n.keptLocked()),
		level: s.level, tracked: s.tracked, notrack: s.notrack,
		port: n.cfg.Port, health: n.cfg.HealthPort, steer: n.steer,
	}
	if len(w.notrack) == 0 && w.level != LevelOwner {
		w.tracked = true
	}
	if left || w.level == 0 {
		// What is left is the backstop, and it is passive: no raw rules, no guarded exception from it.
		w.level, w.tracked, w.steer = LevelPlain, true, false
	}
	if left {
		w.served = w.kept
	}
	w.targets = n.targetsLocked(s.fam)
	return w
}

// targetsLocked is where the backstop sends questions of a family.
func (n *Node) targetsLocked(fam family) []netip.AddrPort {
	if n.mode != IPVS {
		// A flow gets one DNAT: kube-proxy's rules would never see it if it were sent to the ClusterIP.
		return nil
	}
	for _, a := range fam.of(n.cfg.ClusterIP) {
		return []netip.AddrPort{netip.AddrPortFrom(a, 53)}
	}
	return nil
}

// applyRules makes the rules of s as they should be.
func (n *Node) applyRules(ctx context.Context, s *side) error {
	return n.applyWant(ctx, s, n.want(s, false))
}

func (n *Node) applyWant(ctx context.Context, s *side, w want) error {
	if s.tables == nil {
		return nil
	}
	// Read before looking: a change in between is then seen as one the next time.
	generation, genErr := s.tables.Generation()
	byChain := map[chainKey][]rule{}
	for _, r := range w.rules() {
		k := chainKey{r.table, r.chain}
		byChain[k] = append(byChain[k], r)
	}
	failed := map[step][]error{}
	tried := map[step]bool{}
	var all []error
	for _, k := range chains() {
		st := tableStep(k.table)
		if st == stepRaw && len(byChain[k]) == 0 && s.tracked {
			continue // the kernel may not even have the table
		}
		tried[st] = true
		if err := n.applyChain(ctx, s, k, byChain[k]); err != nil {
			err = fmt.Errorf("%s table %s, chain %s: %w", s.fam, k.table, k.chain, err)
			failed[st] = append(failed[st], err)
			all = append(all, err)
		}
	}
	for st := range tried {
		_ = n.problems.note(st, s.fam, errors.Join(failed[st]...))
	}
	if len(all) > 0 {
		s.generation = ""
		return errors.Join(all...)
	}
	s.armed = true
	s.generation = generation
	if genErr != nil {
		s.generation = ""
	}
	return nil
}

// errUnlisted says that a chain does not list what was just put into it.
var errUnlisted = errors.New("rules that were added are not listed; adding no more of them")

// applyChain makes one chain as it should be.
func (n *Node) applyChain(ctx context.Context, s *side, k chainKey, rules []rule) error {
	have, err := n.listChain(ctx, s, k)
	if err != nil {
		return err
	}
	changes := plan(have, rules)
	if len(changes) == 0 {
		delete(s.doubted, k)
		return nil
	}
	for _, c := range changes {
		if c.insert && s.doubted[k] {
			return errUnlisted
		}
		if err := n.change(ctx, s, k, c); err != nil {
			return err
		}
		if s.armed {
			n.m.repairs.WithLabelValues(c.kind).Inc()
			n.log.Warn("put back a part of the node", "kind", c.kind, "table", k.table, "chain", k.chain)
		}
	}
	if have, err = n.listChain(ctx, s, k); err != nil {
		return err
	}
	for _, c := range plan(have, rules) {
		if c.insert {
			// Adding again each time would pile up rules without end.
			s.doubted[k] = true
			return errUnlisted
		}
	}
	return nil
}

func (n *Node) listChain(ctx context.Context, s *side, k chainKey) ([]listed, error) {
	var lines []string
	err := n.patiently(ctx, func() (err error) {
		lines, err = s.tables.List(k.table, k.chain)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing: %w", err)
	}
	return parseChain(lines), nil
}

func (n *Node) change(ctx context.Context, s *side, k chainKey, c change) error {
	if c.insert {
		err := n.patiently(ctx, func() error { return s.tables.Insert(k.table, k.chain, c.pos, c.spec...) })
		if err != nil {
			return fmt.Errorf("adding a rule: %w", err)
		}
		return nil
	}
	err := n.patiently(ctx, func() error { return s.tables.Delete(k.table, k.chain, c.spec...) })
	if err != nil && !gone(err) {
		return fmt.Errorf("deleting a rule: %w", err)
	}
	return nil
}

// budget is the part of a core that checking may take.
const budget = 100

// nextCheck is the earliest time for another full check after one that took cpu.
func nextCheck(now time.Time, cpu time.Duration) time.Time {
	return now.Add(max(cpu*budget, 200*time.Millisecond))
}
