package main

import (
	"context"
	"fmt"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/forward"
)

// upstream is a Forward that runs.
type upstream struct {
	forward *forward.Forward
	cancel  context.CancelFunc
	done    chan struct{}
}

// upstream gives a forward directive its Forward: the old one, with its connections and what it knows of the upstreams'
// health, if nothing about it has changed, nor its TLS files, of which
// digest tells.
func (b *builder) upstream(r, old *running, cfg forward.Config, digest string, block *corefile.Block, f *corefile.Forward) (*upstream, error) {
	alone := &corefile.Block{Zones: block.Zones, Forward: []*corefile.Forward{f}, Loop: block.Loop}
	key := unused(r.forwards, fmt.Sprint(alone, cfg.Self, cfg.LoopZones, digest))
	if old != nil && old.forwards[key] != nil {
		r.forwards[key] = old.forwards[key]
		return r.forwards[key], nil
	}
	fw, err := forward.New(cfg, b.log, b.forward)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background()) // ends with close, after the last question that needs it
	u := &upstream{forward: fw, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(u.done)
		if err := fw.Run(ctx); err != nil {
			b.log.Error("forwarding ended", "error", err)
		}
	}()
	r.forwards[key] = u
	return u, nil
}

// close lets the exchanges under way end and closes the connections.
func (u *upstream) close() {
	u.cancel()
	<-u.done
}
