package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	// seen is what is known of each table, read what is known of kube-proxy's rules in the table nat.
	seen map[string]*seen
	read seen
	// retry is the earliest time to arm once more what could not be armed, pause the time after that.
	retry time.Time
	pause time.Duration
}

// seen is what is known of one table of one family.
type seen struct {
	// generation is that of the table when it was last complete, empty if it is to be looked at.
	generation string
	// armed says that it was complete once, so that what is missing now was taken away.
	armed bool
	// unlisted counts the times in a row that it did not list what had just been put into it; until again it is left alone.
	unlisted int
	again    time.Time
	// full is when it was last looked at.
	full      time.Time
	allowance allowance
}

// doubt notes that the table does not list what was just put into it, and puts off the next try: 2 s at first, for others may
// have cleared it at that moment, as a firewall does that is reloaded, then longer and longer.
func (s *seen) doubt() {
	s.unlisted++
	s.again = time.Now().Add(min(time.Second<<min(s.unlisted, 12), time.Hour))
}

func newSide(fam family) *side {
	s := &side{fam: fam, seen: map[string]*seen{}}
	for _, t := range ourTables() {
		s.seen[t.table] = &seen{}
	}
	return s
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
			n.log.Warn("the rules are not complete; the keeper goes on trying", "family", s.fam.String())
		}
	}
	return ctx.Err()
}

// foreArm installs what must be there before a ClusterIP becomes local: from then on questions of the host's own clients have
// a local address as their source, and leave the node with it unless they are masqueraded.
func (n *Node) foreArm(ctx context.Context) {
	if n.cfg.SkipRules || n.Mode() == IPVS || len(n.cfg.ClusterIP) == 0 {
		return
	}
	n.makeSides()
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Patience)
	defer cancel()
	for _, s := range n.sides {
		if n.openTables(s) != nil {
			continue
		}
		n.keepEndpoints(ctx, always) // or the backstop a predecessor left would go until they are known
		w := n.want(s, false)        // no guard has been chosen: nothing of it steers
		for _, t := range ourTables() {
			if t.table == "nat" {
				_ = n.applyTable(ctx, s, t, w.rules()) // noted there
			}
		}
		s.expectChanges()
	}
}

// openTables finds the iptables of a family.
func (n *Node) openTables(s *side) error {
	if s.tables != nil {
		return nil
	}
	t, flavour, err := n.kernel.Tables(s.fam, n.cfg.Flavour, n.cfg.LockWait)
	if n.problems.note(stepFlavour, s.fam, explain(err)) != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.tables, s.flavour = t, flavour
	return nil
}

// stale says that the rules are to be looked at with the next tick.
func (s *side) stale() {
	for _, known := range s.seen {
		known.generation = ""
	}
	s.read.generation = ""
}

// expectChanges says that the next changes are ours: they count as no repair.
func (s *side) expectChanges() {
	for _, known := range s.seen {
		known.armed = false
	}
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
			n.sides = append(n.sides, newSide(fam))
		}
	}
}

// armSide brings one family as far as it goes. It may be called again at any time.
func (n *Node) armSide(ctx context.Context, s *side) error {
	var errs []error
	if err := n.openTables(s); err != nil {
		errs = append(errs, err)
	}
	n.keepEndpoints(ctx, always)
	if s.level == 0 {
		if err := n.problems.note(stepGuard, s.fam, n.chooseGuard(ctx, s)); err != nil {
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
	if n.cfg.Guard >= LevelOwner {
		le, err := n.kernel.Owner(owned{
			fam: s.fam, served: s.fam.of(n.steered()), port: n.cfg.Port, health: n.cfg.HealthPort, ttl: n.cfg.Lease, tracked: s.tracked,
		})
		if err == nil {
			n.problems.ok(stepOwner, s.fam)
			return use(LevelOwner, le)
		}
		missing(LevelOwner, err)
	}
	if s.tables == nil {
		return errors.New("there is no owner table and no iptables: clients are not steered to the cache")
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
			if noVerdict(tryErr) {
				return tryErr
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
		if noVerdict(err) {
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
	s.expectChanges()
	ctx, cancel := context.WithTimeout(context.Background(), 4*n.cfg.LockWait)
	defer cancel()
	return n.applyRules(ctx, s)
}

// want gives what the rules of s are made from. left asks for what stays when the cache leaves.
func (n *Node) want(s *side, left bool) want {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := want{
		set:    s.fam.setName(n.cfg.Link),
		served: s.fam.of(n.steeredLocked()), kept: s.fam.of(n.kept()), cluster: s.fam.of(n.cfg.ClusterIP), mode: n.mode,
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

// applyRules makes all rules of s as they should be.
func (n *Node) applyRules(ctx context.Context, s *side) error {
	w := n.want(s, false)
	var errs []error
	for _, t := range ourTables() {
		errs = append(errs, n.applyTable(ctx, s, t, w.rules()))
	}
	return errors.Join(errs...)
}

// errUnlisted says that a table does not list what was just put into it.
var errUnlisted = errors.New("rules that were added are not listed: either somebody clears the table, or it does not show them")

// applyTable makes one table as it should be: of rules, those that are for it. The result is noted.
func (n *Node) applyTable(ctx context.Context, s *side, t tableChains, rules []rule) error {
	if s.tables == nil {
		return nil
	}
	rules = slices.DeleteFunc(slices.Clone(rules), func(r rule) bool { return r.table != t.table })
	known := s.seen[t.table]
	if len(rules) == 0 && s.tracked && !known.armed && t.table == "raw" {
		return nil // the kernel may not even have the table
	}
	err := n.changeTable(ctx, s, t, rules)
	if err != nil {
		err = fmt.Errorf("%s table %s: %w", s.fam, t.table, err)
		known.generation = ""
	}
	return n.problems.note(t.step, s.fam, err)
}

// changeTable makes a table hold rules and nothing else of ours. It looks again after it has added some: others may change the
// table at the same time.
func (n *Node) changeTable(ctx context.Context, s *side, t tableChains, rules []rule) error {
	known := s.seen[t.table]
	added := map[string]bool{}
	for range 4 {
		// Read before looking: a change in between is then seen as one the next time.
		generation := s.generation(t.table)
		changes, err := n.planTable(ctx, s, t, rules)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			known.armed, known.unlisted, known.again = true, 0, time.Time{}
			known.generation, known.full = generation, time.Now()
			return nil
		}
		adds := inserts(changes)
		if slices.ContainsFunc(adds, func(c change) bool { return added[c.key()] }) {
			known.doubt()
			return errUnlisted
		}
		if len(adds) > 0 && time.Now().Before(known.again) {
			return errUnlisted
		}
		if err := n.commit(ctx, s, t, changes); err != nil {
			return err
		}
		if len(adds) == 0 {
			known.armed, known.generation = true, ""
			return nil
		}
		for _, c := range adds {
			added[c.key()] = true
		}
	}
	return errors.New("others change it as fast as this cache does")
}

// commit carries out changes, and counts them as repairs where the table had been complete before.
func (n *Node) commit(ctx context.Context, s *side, t tableChains, changes []change) error {
	known := s.seen[t.table]
	commit := func(changes []change) error {
		return n.patiently(ctx, func() error { return s.tables.Commit(t.table, changes) })
	}
	// Rules that are not listed may be there all the same: then they are replaced, or they would pile up. If one is not there,
	// all of that fails.
	if known.unlisted == 0 || commit(replacing(changes)) != nil {
		if err := commit(changes); err != nil {
			return err
		}
	}
	if !known.armed {
		return nil
	}
	kinds := map[string]int{}
	for _, c := range changes {
		kinds[c.kind]++
		n.m.repairs.WithLabelValues(c.kind).Inc()
	}
	n.log.Warn("put back a part of the node", "family", s.fam.String(), "table", t.table, "changes", kinds)
	return nil
}

// generation is the table's, empty if it cannot be had.
func (s *side) generation(table string) string {
	g, err := s.tables.Generation(table)
	if err != nil {
		return ""
	}
	return g
}

// planTable compares a table with what it should hold.
func (n *Node) planTable(ctx context.Context, s *side, t tableChains, rules []rule) ([]change, error) {
	var lines []string
	err := n.patiently(ctx, func() (err error) {
		lines, err = s.tables.List(t.table, t.chains)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing: %w", err)
	}
	var changes []change
	var strangers []error
	for _, chain := range t.chains {
		strangers = append(strangers, n.strangers(s, t.table, chain, parseChain(chain, lines)))
		want := slices.DeleteFunc(slices.Clone(rules), func(r rule) bool { return r.chain != chain })
		changes = append(changes, plan(chain, parseChain(chain, lines), want)...)
	}
	if t.table == "raw" {
		_ = n.problems.note(stepForeign, s.fam, errors.Join(strangers...))
	}
	return changes, nil
}

// strangers names rules that are not ours and lead our traffic past connection tracking, and so past the guard: with
// them a dead cache takes its clients' questions with it. The upstream cache leaves such rules when it is killed.
func (n *Node) strangers(s *side, table, chain string, have []listed) error {
	if table != "raw" {
		return nil
	}
	var errs []error
	for _, l := range have {
		target := option(l.spec, "-j")
		if l.comment != "" || target != "NOTRACK" && (target != "CT" || !slices.Contains(l.spec, "--notrack")) {
			continue
		}
		for _, a := range s.fam.of(n.served()) {
			if option(l.spec, "-d") == cidr(a) && option(l.spec, "--dport") == strconv.Itoa(int(n.cfg.Port)) {
				errs = append(errs, conflict("a rule that is not ours keeps questions to %s out of connection tracking whether this cache lives or not; "+
					"remove it: iptables -t raw -D %s%s", a, chain, joinWords(l.spec)))
			}
		}
	}
	return errors.Join(errs...)
}
