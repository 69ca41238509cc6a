package resolve

import (
	"time"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

const (
	// shortLife is how long a denial without SOA lives: it does not say how long it
	// holds, and RFC 2308 section 5 advises against keeping it; a few seconds spare the
	// upstream a stream of the same question.
	shortLife = 5 * time.Second
	// failureLife is how long failures live that the servfail option is not about:
	// timeouts, refusals. RFC 9520 section 3.2 demands one second at least.
	failureLife = time.Second
	// unsignedLife bounds how long an answer is given to who wants DNSSEC records although
	// it came without EDNS, and so without them. Should that have been a mishap, those who
	// validate take the answer for a forged one until it ends.
	unsignedLife = time.Minute
)

// keep turns a reply into an answer and stores it in s, unless that is nil or the answer
// must not be stored. name is that of the question.
func (z *Zone) keep(s *store.Store, name []byte, r *wire.Reply) *outcome {
	kind, life, floor := z.lifetime(r)
	if r.Unsigned() {
		life = min(life, unsignedLife)
	}
	ceiling := life
	if r.Kind == wire.Positive {
		ceiling = max(z.cfg.Cache.Success.Max, z.cfg.Cache.Success.Min)
	}
	e, room := store.NewEntry(r.Size())
	e.Answer = r.Answer(room, floor, uint32(ceiling/time.Second))
	out := &outcome{answer: &e.Answer, failed: r.Kind == wire.Failure, cut: r.Truncated}
	switch {
	case s == nil || r.Truncated || z.disabled(kind, name):
		return out
	case life < time.Second:
		if r.Kind != wire.Failure {
			s.Remove(&e.Answer) // what was known is not so any more
		}
		return out
	}
	now := s.Now()
	s.Put(e, kind, now, life, func(old *store.Entry) bool {
		switch {
		case r.Kind == wire.Failure:
			return z.state(old, now) != gone && !isFailure(old.Rcode())
		case kind == store.Denial && z.cfg.Cache.Stale.PreferPositive:
			return old.Kind() == store.Success && z.state(old, now) != gone
		case kind == store.Denial && !r.HasSOA:
			return old.Kind() == store.Success && z.state(old, now) == fresh
		}
		return false
	})
	return out
}

// lifetime returns the kind that a reply counts as, how long it lives and the floor for
// the TTLs in it. A lifetime of zero means that the reply must not be used again.
func (z *Zone) lifetime(r *wire.Reply) (k store.Kind, life time.Duration, floor uint32) {
	c := &z.cfg.Cache
	switch {
	case r.Kind == wire.Positive:
		return store.Success, c.Success.clamp(seconds(r.MinTTL)), uint32(c.Success.Min / time.Second)
	case r.Kind == wire.Failure:
		return store.Denial, z.failureLife(r.Rcode), 0
	case r.HasSOA:
		// RFC 2308 section 5; records of an alias before the denial bound it as well.
		return store.Denial, c.Denial.clamp(seconds(min(r.SOATTL, r.MinTTL))), uint32(c.Denial.Min / time.Second)
	default:
		// Also an alias that leads nowhere: its own TTL says nothing about the address
		// that is missing.
		return store.Denial, min(shortLife, seconds(r.MinTTL), c.Denial.Max), 0
	}
}

func seconds(ttl uint32) time.Duration { return time.Duration(ttl) * time.Second }

func (b TTLBounds) clamp(d time.Duration) time.Duration { return min(max(d, b.Min), max(b.Max, b.Min)) }

// failureLife returns how long a failure is remembered.
func (z *Zone) failureLife(r wire.Rcode) time.Duration {
	switch limit := z.cfg.Cache.ServFail; {
	case limit < 0:
		return 0
	case r == wire.ServFail || r == wire.NotImp:
		return limit
	default:
		return min(limit, failureLife)
	}
}

func (z *Zone) disabled(k store.Kind, name []byte) bool {
	if k == store.Success {
		return under(name, z.disableSuccess)
	}
	return under(name, z.disableDenial)
}
