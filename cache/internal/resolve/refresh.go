package resolve

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// refresh renews e in the background unless that is under way, failed lately or would
// be too many at once.
func (z *Zone) refresh(e *store.Entry, prefetch bool) {
	now := z.store.Now()
	if e.Resting(now) {
		return // without the lock: every hit on an answer that is being renewed comes here
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.beginLocked(e, now) != nil && prefetch {
		z.extra.prefetches.Add(1)
	}
}

// verify returns the renewal of e that is under way, or begins one as refresh does; nil
// if neither is to be had.
func (z *Zone) verify(e *store.Entry) *renewal {
	z.mu.Lock()
	defer z.mu.Unlock()
	if r := z.renewals[e]; r != nil {
		return r
	}
	return z.beginLocked(e, z.store.Now())
}

func (z *Zone) beginLocked(e *store.Entry, now time.Duration) *renewal {
	if z.ctx.Err() != nil || len(z.renewals) >= z.cfg.MaxRefresh || !e.BeginRefresh(now) {
		return nil
	}
	r := &renewal{done: make(chan struct{}), until: now + z.cfg.Cache.Stale.VerifyTimeout}
	z.renewals[e] = r
	z.bg.Go(func() { z.renew(e, r) })
	return r
}

// renewal is a refresh under way.
type renewal struct {
	done  chan struct{} // closed once out is set
	out   *outcome
	until time.Duration // when those who verify give up on it, on the store's clock
}

// renew carries out a refresh. Nobody stands above it to recover from a panic.
func (z *Zone) renew(e *store.Entry, r *renewal) {
	r.out = &outcome{err: errPanic}
	defer func() {
		if reason := recover(); reason != nil {
			z.panicked(reason)
		}
		var before time.Duration
		if z.store.Get(e.Question(), e.Variant()) == e { // not replaced
			before = z.store.Now() + z.cfg.Cache.Stale.Recheck
		}
		e.EndRefresh(before)
		z.mu.Lock()
		delete(z.renewals, e)
		z.mu.Unlock()
		close(r.done)
	}()
	ctx, cancel := context.WithTimeout(z.ctx, z.cfg.Timeout)
	defer cancel()
	r.out = z.ask(ctx, z.store, e.Question(), e.Variant(), wire.Origin{})
}

func (z *Zone) panicked(reason any) {
	z.extra.panics.Add(1)
	if z.cfg.Log != nil {
		z.cfg.Log.Error("panic while renewing an answer", slog.Any("panic", reason), slog.String("stack", string(debug.Stack())))
	}
}
