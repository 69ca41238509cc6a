package resolve

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// askLocal returns the outcome of a question that is answered on the spot, or nil.
func (z *Zone) askLocal(ctx context.Context, s *store.Store, question []byte, variant wire.Variant, from wire.Origin) *outcome {
	if len(z.cfg.Local) == 0 && z.cfg.Last == nil {
		return nil
	}
	asked := z.rewrite(question)
	query := wire.AppendUpstream(nil, asked.question, variant)
	for _, l := range z.cfg.Local {
		reply, keep := l.Answer(query, from)
		if reply == nil {
			continue
		}
		reply, err := z.follow(ctx, asked.question, variant, from, reply)
		if err != nil {
			return z.failed(question, fmt.Errorf("following an alias: %w", err))
		}
		return z.readLocal(s, question, variant, asked, reply, keep)
	}
	if z.cfg.Last == nil || z.route(asked.name()) != nil {
		return nil
	}
	if reply, keep := z.cfg.Last.Answer(query, from); reply != nil {
		return z.readLocal(s, question, variant, asked, reply, keep)
	}
	return nil
}

func (z *Zone) readLocal(s *store.Store, question []byte, variant wire.Variant, asked asked, reply []byte, keep bool) *outcome {
	var r wire.Reply
	reply, err := asked.restore(reply)
	if err == nil {
		err = r.Read(question, variant, reply)
	}
	if err != nil {
		return z.failed(question, fmt.Errorf("answering on the spot: %w", err))
	}
	if !keep {
		s = nil
	}
	out := z.keep(s, question[:len(question)-4], &r)
	out.how = byLocal
	return out
}

// fetch asks upstream and keeps what comes back. It remembers a failure briefly too
// (RFC 9520), if it is one of the upstream's and not of our own making.
func (z *Zone) fetch(ctx context.Context, s *store.Store, question []byte, variant wire.Variant) *outcome {
	name := question[:len(question)-4]
	asked := z.rewrite(question)
	way := z.route(asked.name())
	if way == nil {
		return z.failed(question, wire.ErrNoUpstream)
	}
	var r wire.Reply
	err := z.exchange(ctx, way.upstream, asked, question, variant, &r)
	if err != nil {
		if s != nil && memorable(ctx, err) {
			z.keepFailure(s, question, variant)
		}
		return z.failed(question, err)
	}
	out := z.keep(s, name, &r)
	out.how = byForward
	if out.failed {
		z.noteFailure(question, fmt.Errorf("upstream answered %s", r.Rcode))
	}
	return out
}

// exchange asks up and reads the reply into r.
func (z *Zone) exchange(ctx context.Context, up Upstream, asked asked, question []byte, variant wire.Variant, r *wire.Reply) error {
	query := wire.AppendUpstream(make([]byte, 0, 12+len(asked.question)+11), asked.question, variant)
	reply, err := up.Exchange(ctx, query)
	if err != nil {
		return fmt.Errorf("asking upstream: %w", err)
	}
	if reply, err = asked.restore(reply); err == nil {
		err = r.Read(question, variant, reply)
	}
	if err != nil {
		if errors.Is(err, wire.ErrMismatch) {
			z.extra.drops.Add(1)
		}
		return fmt.Errorf("reading reply: %w", err)
	}
	r.Authoritative = false // said of the upstream, not of us
	if r.Rcode > 15 {
		r.Rcode = wire.ServFail // BADVERS, BADCOOKIE and their like are about our own query
	}
	return nil
}

// route returns the way for a name, or nil.
func (z *Zone) route(name []byte) *route {
	for i := range z.routes {
		if r := &z.routes[i]; wire.Under(name, r.from) && !under(name, r.except) {
			return r
		}
	}
	return nil
}

// memorable tells whether a failed exchange says something about the upstream that still
// holds in a moment.
func memorable(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, wire.ErrBusy), errors.Is(err, wire.ErrNoUpstream), errors.Is(err, wire.ErrLoop):
		return false
	case errors.Is(err, wire.ErrClosed), errors.Is(err, net.ErrClosed):
		return false
	case errors.Is(err, context.Canceled) || errors.Is(ctx.Err(), context.Canceled):
		return false
	}
	return true
}

func (z *Zone) keepFailure(s *store.Store, question []byte, variant wire.Variant) {
	life := z.failureLife(wire.Refused) // not the upstream's SERVFAIL but our own
	if life <= 0 || under(question[:len(question)-4], z.disableDenial) {
		return
	}
	now := s.Now()
	e, room := store.NewEntry(len(question))
	e.Answer = wire.StatusAnswer(room, question, variant, wire.ServFail)
	s.Put(e, store.Denial, now, life, func(old *store.Entry) bool {
		return z.state(old, now) != gone && !isFailure(old.Rcode())
	})
}

func (z *Zone) failed(question []byte, err error) *outcome {
	z.noteFailure(question, err)
	return &outcome{err: err}
}
