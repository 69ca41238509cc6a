package resolve

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// resolve answers q, upstream if need be.
func (z *Zone) resolve(ctx context.Context, dst []byte, q *wire.Query, from wire.Origin) (reply []byte, how source) {
	if z.cfg.QueryLog != nil {
		start := time.Now()
		defer func() { z.logQuery(q, from, reply, time.Since(start)) }()
		if reply, how, ok := z.fromMemory(dst, q, from); ok { // which hit has left to us
			return reply, how
		}
	}
	s := z.cacheFor(q.Name())
	if s != nil {
		now := s.Now()
		e := s.Get(q.Question(), q.Variant())
		switch {
		case e == nil:
		case z.state(e, now) == fresh: // another client's question brought it meanwhile
			reply, how, _ = z.fromEntry(dst, q, from, e, now)
			return reply, how
		case z.state(e, now) == stale:
			return z.resolveStale(ctx, dst, q, from, e)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, z.cfg.Timeout)
	defer cancel()
	if out := z.askLocal(ctx, s, q.Question(), q.Variant(), from); out != nil {
		return z.fromOutcome(dst, q, from, out)
	}
	if z.cut != nil && s != nil {
		if reply, how = z.learnCut(ctx, dst, q, from, s); reply != nil {
			return reply, how
		}
	}
	out := z.askUpstream(ctx, s, q.Question(), q.Variant())
	return z.fromOutcome(dst, q, from, out)
}

// resolveStale answers q for which old may be given. With verify all who ask wait for the
// same renewal, until the time that its first asker has for it.
func (z *Zone) resolveStale(ctx context.Context, dst []byte, q *wire.Query, from wire.Origin, old *store.Entry) ([]byte, source) {
	if !z.cfg.Cache.Stale.Verify {
		z.refresh(old, false)
	} else if renewal := z.verify(old); renewal != nil {
		timer := time.NewTimer(renewal.until - z.store.Now())
		defer timer.Stop()
		select {
		case <-renewal.done:
			if out := renewal.out; out.err == nil && !out.failed && !out.cut {
				return z.fromOutcome(dst, q, from, out)
			}
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	reply, how, _ := z.fromStale(dst, q, from, old)
	return reply, how
}

// fromOutcome issues what an upstream or a local answerer said, or why there is nothing.
func (z *Zone) fromOutcome(dst []byte, q *wire.Query, from wire.Origin, out *outcome) ([]byte, source) {
	// Over TCP there is nowhere left to go from a truncated answer (RFC 2181 section 9), and
	// stub resolvers do not expect one: an empty one would mean that there is no such record.
	if out.err == nil && (!out.cut || from.Transport == wire.UDP) {
		return z.issue(dst, q, out.answer, z.terms(from)), out.how
	}
	return q.AppendStatus(dst, wire.ServFail, explain(out.err)), bySelf
}

// explain returns the extended error for what a question failed of.
func explain(err error) wire.EDE {
	switch {
	case errors.Is(err, wire.ErrNoUpstream), errors.Is(err, wire.ErrLoop):
		return wire.EDENoReachable
	case errors.Is(err, wire.ErrBusy):
		return wire.EDENotReady
	}
	return wire.EDENetworkError
}

// ask returns the outcome of a question, made on the spot or upstream. ctx bounds how long
// it takes.
func (z *Zone) ask(ctx context.Context, s *store.Store, question []byte, variant wire.Variant, from wire.Origin) *outcome {
	if out := z.askLocal(ctx, s, question, variant, from); out != nil {
		return out
	}
	return z.askUpstream(ctx, s, question, variant)
}

// askUpstream returns the outcome of a question that nobody answers on the spot, joining
// those who ask the same.
func (z *Zone) askUpstream(ctx context.Context, s *store.Store, question []byte, variant wire.Variant) *outcome {
	if err := ctx.Err(); err != nil {
		return &outcome{err: err} // spent on asking for a name above
	}
	key := string(append(slices.Clip(question), byte(variant)))
	for {
		fl, leader := z.flights.join(key, z.cfg.MaxInflight)
		if fl == nil {
			z.extra.busy.Add(1)
			return &outcome{err: wire.ErrBusy}
		}
		if leader {
			return z.lead(ctx, s, question, variant, key, fl)
		}
		select {
		case <-fl.done:
			// A leader whose own client went away tells nothing about the question.
			if errors.Is(fl.out.err, context.Canceled) && ctx.Err() == nil {
				continue
			}
			return fl.out
		case <-ctx.Done():
			return &outcome{err: ctx.Err()}
		}
	}
}

// errPanic is what those who joined a flight are told when its leader panicked.
var errPanic = errors.New("panic while asking upstream")

// lead fetches the answer to a question for all who joined its flight. A panic goes on to
// the caller but lands the flight, or everybody would wait for it from then on.
func (z *Zone) lead(ctx context.Context, s *store.Store, question []byte, variant wire.Variant, key string, fl *flight) *outcome {
	out := &outcome{err: errPanic}
	defer func() { z.flights.land(key, fl, out) }()
	out = z.fetch(ctx, s, question, variant)
	return out
}
