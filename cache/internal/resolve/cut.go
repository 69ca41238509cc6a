package resolve

import (
	"context"
	"sync"
	"time"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// The search-path cut. With ndots:5 a Pod asks for www.example.com first as
// www.example.com.team-a.svc.cluster.local, then below svc.cluster.local, then below
// cluster.local, in each address family. Every outside name costs the cluster DNS
// these questions, and no cache helps, since each name is new.
//
// What does not exist has nothing below it (RFC 8020), so one answer "com.team-a.svc.
// cluster.local does not exist" settles all of them. The cut looks at one or two names
// above the one asked for, and asks for one of them instead when it knows nothing yet:
//
//	www.example.com.team-a.svc.cluster.local    com.team-a.svc…
//	www.example.com.svc.cluster.local           com.svc…, example.com.svc…
//	www.example.com.cluster.local               com.cluster.local
//
// Never a name whose first label begins with an underscore: cluster DNS denies
// _tcp.web.team-a.svc while _http._tcp.web.team-a.svc exists. Nor svc, pod and dns right
// below the zone, which have children whatever is said of them.

// cutLevel is a name above the one asked for that may turn out not to exist.
type cutLevel struct {
	off       int  // where it begins in the name
	namespace bool // it is a label right below svc: a namespace, if anything
}

// levels returns the levels for name, top first, and how many there are. All lie above
// name.
func (c *cutter) levels(name []byte) (levels [2]cutLevel, n int) {
	for _, zone := range c.zones {
		if wire.Under(name, zone) {
			return cutLevels(name, zone)
		}
	}
	return levels, 0
}

// cutLevels returns the levels for a name in zone.
func cutLevels(name, zone []byte) (levels [2]cutLevel, n int) {
	// The labels right below the zone matter: remember the last four offsets.
	var offs [4]int
	count := 0
	for off := 0; off < len(name)-len(zone); off += int(name[off]) + 1 {
		copy(offs[1:], offs[:3])
		offs[0] = off
		count++
	}
	add := func(i int, namespace bool) {
		if count > i+1 && name[offs[i]+1] != '_' {
			levels[n] = cutLevel{offs[i], namespace}
			n++
		}
	}
	if count < 2 {
		return levels, 0
	}
	switch top := name[offs[0]+1 : offs[0]+1+int(name[offs[0]])]; string(top) {
	case "svc":
		if name[offs[1]+1] == '_' {
			return levels, 0
		}
		add(1, true)
		add(2, false)
	case "pod", "dns":
	default:
		add(0, false)
	}
	return levels, n
}

// levelQuestion builds the question for a level in buf: type A, since a name error holds
// for all types.
func levelQuestion(buf []byte, name []byte, off int) []byte {
	return append(append(buf, name[off:]...), 0, wire.TypeA, 0, wire.ClassIN)
}

// An answer that a cut gives must be the one that would have come without it. So names
// that are answered on the spot are not cut, nor those that a rewrite rule touches, nor
// is what would go another way than the level; and what was answered on the spot at a
// level says nothing about names below.

// cutsAtOnce tells whether a cut can be applied before the zone's local answerers and
// rewrite rules have seen the name.
func (z *Zone) cutsAtOnce() bool { return z.cut != nil && len(z.cfg.Local) == 0 && len(z.rules) == 0 }

// mayCut tells whether a denial of the level at off may settle a question for name.
func (z *Zone) mayCut(name []byte, off int) bool {
	level, way := name[off:], z.route(name)
	return way != nil && way == z.route(level) && under(level, z.names) && z.cacheFor(level) != nil
}

// rewritten tells whether a rewrite rule touches the question.
func (z *Zone) rewritten(question []byte) bool { return z.rewrite(question).original != nil }

// findCut returns a fresh entry that settles q because a name above q's does not exist.
func (z *Zone) findCut(s *store.Store, q *wire.Query, now time.Duration) *store.Entry {
	if q.Class != wire.ClassIN {
		return nil
	}
	name := q.Name()
	levels, n := z.cut.levels(name)
	for _, level := range levels[:n] {
		if !z.mayCut(name, level.off) {
			continue
		}
		var buf [260]byte
		e := s.Get(levelQuestion(buf[:0], name, level.off), q.Variant())
		if e != nil && e.Left(now) > 0 && e.Cuts() {
			return e
		}
	}
	return nil
}

// learnCut answers q from a name above it that does not exist, asking upstream for that
// name if nothing is known about it. It returns nil if q has to be asked for itself. No
// local answerer has an answer to q.
func (z *Zone) learnCut(ctx context.Context, dst []byte, q *wire.Query, from wire.Origin, s *store.Store) ([]byte, source) {
	if q.Class != wire.ClassIN || z.rewritten(q.Question()) {
		return nil, 0
	}
	name := q.Name()
	levels, n := z.cut.levels(name)
	for _, level := range levels[:n] {
		question := levelQuestion(nil, name, level.off)
		if !z.mayCut(name, level.off) || z.rewritten(question) {
			continue
		}
		now := s.Now()
		e := s.Get(question, q.Variant())
		switch {
		case e == nil || e.Left(now) <= 0:
		case e.Cuts():
			return z.fromCut(dst, q, from, e, now), hitDenial
		case isFailure(e.Rcode()):
			return nil, 0 // RFC 9520 section 3.2: it is not asked again so soon
		default:
			continue
		}
		label := name[level.off+1 : level.off+1+int(name[level.off])]
		if !z.cut.worthAsking(name[level.off:], label, level, now) {
			continue
		}
		out := z.ask(ctx, s, question, q.Variant(), from)
		switch {
		case out.err != nil || out.failed:
			return nil, 0 // q itself may fare better
		case out.answer.Cuts():
			z.cut.denied(label, level)
			t := z.terms(from)
			t.EDE = wire.EDESynthesized
			z.extra.cuts.Add(1)
			return out.answer.AppendCut(dst, q, t), out.how
		}
		z.cut.exists(name[level.off:], s.Now())
	}
	return nil, 0
}

const (
	// existsFor is how long a name that was found is not asked for again. Too long costs
	// nothing but questions that a cut would have saved.
	existsFor = 5 * time.Minute
	// cutMemory bounds both memories of a cutter.
	cutMemory = 4096
)

// cutter remembers which names above others are worth asking for.
type cutter struct {
	zones [][]byte

	mu sync.Mutex
	// found has names that exist, with the time until which that is believed.
	found map[string]time.Duration
	// outside has labels that were found not to exist below a namespace: com, org. Only
	// such a label right below svc is asked for as a namespace. Asking for each
	// namespace would cost the lookups of real services a question, and not asking for
	// com.svc.cluster.local leaves every outside name one. The order of the search list
	// makes sure that the label has been seen below a namespace before.
	outside map[string]struct{}
}

func newCutter(zones [][]byte) *cutter {
	return &cutter{zones: zones, found: make(map[string]time.Duration), outside: make(map[string]struct{})}
}

// worthAsking tells whether to ask for the name at level, whose first label is label.
func (c *cutter) worthAsking(name, label []byte, level cutLevel, now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found[string(name)] > now {
		return false
	}
	if level.namespace {
		_, ok := c.outside[string(label)]
		return ok
	}
	return true
}

// exists notes that there is something at name.
func (c *cutter) exists(name []byte, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.found) >= cutMemory {
		clear(c.found)
	}
	c.found[string(name)] = now + existsFor
}

// denied notes that label does not exist at level.
func (c *cutter) denied(label []byte, level cutLevel) {
	if level.namespace {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.outside) >= cutMemory {
		clear(c.outside)
	}
	c.outside[string(label)] = struct{}{}
}
