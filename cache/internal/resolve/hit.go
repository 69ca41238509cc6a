package resolve

import (
	"time"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// hit answers q from memory if that can be done at once.
func (z *Zone) hit(dst []byte, q *wire.Query, from wire.Origin) (reply []byte, how source, ok bool) {
	if z.cfg.QueryLog != nil {
		return nil, 0, false
	}
	return z.fromMemory(dst, q, from)
}

func (z *Zone) fromMemory(dst []byte, q *wire.Query, from wire.Origin) (reply []byte, how source, ok bool) {
	s := z.cacheFor(q.Name())
	if s == nil {
		return nil, 0, false
	}
	now := s.At(from.Received)
	if e := s.Get(q.Question(), q.Variant()); e != nil {
		switch z.state(e, now) {
		case fresh:
			if z.prefetchDue(e, now) {
				z.refresh(e, true)
			}
			return z.fromEntry(dst, q, from, e, now)
		case stale:
			if !z.cfg.Cache.Stale.Verify {
				z.refresh(e, false)
				return z.fromStale(dst, q, from, e)
			}
			if e.Resting(now) && !e.Refreshing() {
				return z.fromStale(dst, q, from, e)
			}
			return nil, 0, false
		}
	}
	if z.cutsAtOnce() {
		if e := z.findCut(s, q, now); e != nil {
			if z.prefetchDue(e, now) {
				z.refresh(e, true)
			}
			return z.fromCut(dst, q, from, e, now), hitDenial, true
		}
	}
	return nil, 0, false
}

// state is what an entry is good for.
type state uint8

const (
	gone  state = iota // of no use any more
	fresh              // within its lifetime
	stale              // ended, but may be given under RFC 8767
)

func (z *Zone) state(e *store.Entry, now time.Duration) state {
	left := e.Left(now)
	switch {
	case left > 0:
		return fresh
	case left+z.cfg.Cache.Stale.For > 0 && !isFailure(e.Rcode()):
		return stale // never a failure: RFC 8767 section 4
	}
	return gone
}

func isFailure(r wire.Rcode) bool { return r != wire.NoError && r != wire.NXDomain }

// prefetchDue counts a use of e and tells whether e is popular and near its end.
func (z *Zone) prefetchDue(e *store.Entry, now time.Duration) bool {
	p := &z.cfg.Cache.Prefetch
	if p.Amount == 0 {
		return false
	}
	uses := e.Use(now, p.Gap, uint32(p.Amount))
	due := max(e.Life()*time.Duration(p.Percent)/100, time.Second)
	return int(uses) >= p.Amount && e.Left(now) <= due
}

// fromEntry issues a fresh entry.
func (z *Zone) fromEntry(dst []byte, q *wire.Query, from wire.Origin, e *store.Entry, now time.Duration) ([]byte, source, bool) {
	t := z.terms(from)
	if !z.cfg.Cache.KeepTTL {
		t.Age = uint32(e.Age(now) / time.Second)
	}
	if isFailure(e.Rcode()) {
		t.EDE = wire.EDECachedError
	}
	how := hitSuccess
	if e.Kind() == store.Denial {
		how = hitDenial
	}
	return z.issue(dst, q, &e.Answer, t), how, true
}

// fromStale issues an entry that has ended.
func (z *Zone) fromStale(dst []byte, q *wire.Query, from wire.Origin, e *store.Entry) ([]byte, source, bool) {
	t := z.terms(from)
	t.Stale = uint32(z.cfg.Cache.Stale.TTL / time.Second)
	how := staleSuccess
	t.EDE = wire.EDEStaleAnswer
	if e.Kind() == store.Denial {
		how = staleDenial
		if e.Rcode() == wire.NXDomain {
			t.EDE = wire.EDEStaleNXDomain
		}
	}
	return z.issue(dst, q, &e.Answer, t), how, true
}

// fromCut issues a name error of a name above q's.
func (z *Zone) fromCut(dst []byte, q *wire.Query, from wire.Origin, e *store.Entry, now time.Duration) []byte {
	t := z.terms(from)
	t.EDE = wire.EDESynthesized
	if !z.cfg.Cache.KeepTTL {
		t.Age = uint32(e.Age(now) / time.Second)
	}
	z.extra.cuts.Add(1)
	return e.AppendCut(dst, q, t)
}

func (z *Zone) terms(from wire.Origin) wire.Terms {
	return wire.Terms{Limit: z.cfg.BufSize, Transport: from.Transport}
}

// issue appends the reply to q that a gives, with the addresses in another order from
// time to time if so configured.
func (z *Zone) issue(dst []byte, q *wire.Query, a *wire.Answer, t wire.Terms) []byte {
	if !z.cfg.LoadBalance {
		return a.AppendReply(dst, q, t)
	}
	t.Rotate = z.turn()
	if q.Type == wire.TypeMX {
		return a.AppendReordered(dst, q, t)
	}
	return a.AppendReply(dst, q, t)
}
