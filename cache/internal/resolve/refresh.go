package resolve

import (
	"context"
	"time"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// refresh renews e in the background unless that is under way, failed lately or would
// be too many at once. The channel gets the outcome; it is nil if nothing was started.
func (z *Zone) refresh(e *store.Entry, prefetch bool) <-chan *outcome {
	if !e.BeginRefresh(z.store.Now()) {
		return nil
	}
	if !z.startRefresh() {
		e.EndRefresh(0)
		return nil
	}
	if prefetch {
		z.extra.prefetches.Add(1)
	}
	done := make(chan *outcome, 1)
	go func() {
		defer z.endRefresh()
		ctx, cancel := context.WithTimeout(z.ctx, z.cfg.Timeout)
		defer cancel()
		out := z.ask(ctx, z.store, e.Question(), e.Variant(), wire.Origin{})
		var before time.Duration
		if z.store.Get(e.Question(), e.Variant()) == e { // not replaced
			before = z.store.Now() + z.cfg.Cache.Stale.Recheck
		}
		e.EndRefresh(before)
		done <- out
	}()
	return done
}

// startRefresh counts a background goroutine in, unless the zone is closed or has too
// many.
func (z *Zone) startRefresh() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.ctx.Err() != nil || z.refreshing >= z.cfg.MaxRefresh {
		return false
	}
	z.refreshing++
	z.bg.Add(1)
	return true
}

func (z *Zone) endRefresh() {
	z.mu.Lock()
	z.refreshing--
	z.mu.Unlock()
	z.bg.Done()
}
