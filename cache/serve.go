package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodedns/nodedns/cache/internal/listen"
)

// server owns what serves: the endpoints and the configuration behind them. Only one goroutine calls apply and stop;
// progress and asked may be called by any.
type server struct {
	log     *slog.Logger
	metrics *listen.Metrics
	steered []netip.AddrPort // where the node's rules lead questions: a configuration that leaves one out is refused

	mu        sync.Mutex
	endpoints map[netip.AddrPort]*endpoint
	current   *running
}

// endpoint is a listen.Endpoint that runs.
type endpoint struct {
	*listen.Endpoint
	cfg    listen.Config
	cancel context.CancelFunc
	done   chan struct{}
}

func newServer(log *slog.Logger, metrics *listen.Metrics) *server {
	return &server{log: log, metrics: metrics, endpoints: make(map[netip.AddrPort]*endpoint)}
}

// apply puts next in the place of what serves now. First everything new is bound; if an address cannot be had, all of it is
// given back and nothing has changed. From then on nothing can fail: kept endpoints get their new handler between two
// questions, new ones start, dropped ones drain, and the old configuration is closed when nobody is left in it.
func (s *server) apply(next *running) error {
	if err := next.serves(s.steered); err != nil {
		return err
	}
	s.mu.Lock()
	old, have := s.current, maps.Clone(s.endpoints)
	s.mu.Unlock()
	fresh := make(map[netip.AddrPort]*listen.Endpoint)
	var errs []error
	for _, at := range next.places() {
		spec := next.endpoints[at]
		if e := have[at]; e != nil && e.cfg == spec.listen {
			continue
		}
		l, err := listen.Listen(spec.listen, faulty(spec.router), s.log, s.metrics)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fresh[at] = l
	}
	if err := errors.Join(errs...); err != nil {
		for _, l := range fresh {
			err = errors.Join(err, l.Close())
		}
		return err
	}
	next.attach()
	var gone []*endpoint
	var former []leaving
	for at, e := range have {
		switch spec, wanted := next.endpoints[at]; {
		case wanted && fresh[at] == nil:
			former = append(former, leaving{e.Swap(faulty(spec.router)), e.done})
		default:
			delete(have, at)
			gone = append(gone, e)
		}
	}
	for at, l := range fresh {
		have[at] = s.start(l, next.endpoints[at].listen)
	}
	s.mu.Lock()
	s.endpoints, s.current = have, next
	s.mu.Unlock()
	stopAll(gone)
	if old != nil {
		s.await(former)
		old.retire(next)
	}
	return nil
}

// attach makes what r has taken over its own.
func (r *running) attach() {
	for _, at := range r.places() {
		r.endpoints[at].router.Attach()
	}
	for s, bytes := range r.bounds {
		s.Bound(bytes)
	}
}

// leaving tells when an endpoint that has a new handler calls the former one no more.
type leaving struct{ drained, ended <-chan struct{} }

// await returns when nobody is left in the former handlers, or should long have been.
func (s *server) await(former []leaving) {
	bound := time.NewTimer(shortly)
	defer bound.Stop()
	for _, l := range former {
		select {
		case <-l.drained:
		case <-l.ended:
		case <-bound.C:
			s.log.Error("questions to the former configuration do not end", "after", shortly)
			return
		}
	}
}

// places lists where r serves.
func (r *running) places() []netip.AddrPort {
	return slices.SortedFunc(maps.Keys(r.endpoints), netip.AddrPort.Compare)
}

// serves returns an error if r leaves out an address to which questions are led: they would be refused there, and nothing
// would tell that they are.
func (r *running) serves(steered []netip.AddrPort) error {
	return unserved(steered, func(at netip.AddrPort) bool {
		_, ok := r.endpoints[at]
		return ok
	})
}

func (s *server) start(l *listen.Endpoint, cfg listen.Config) *endpoint {
	ctx, cancel := context.WithCancel(context.Background()) // ends with stop, which must come after the lease
	e := &endpoint{Endpoint: l, cfg: cfg, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		if err := l.Run(ctx); err != nil {
			s.log.Error("serving ended", "address", l.Addr(), "error", err)
		}
	}()
	return e
}

// stopAll drains endpoints, all at the same time.
func stopAll(es []*endpoint) {
	for _, e := range es {
		e.cancel()
	}
	for _, e := range es {
		<-e.done
	}
}

// retire closes what next does not take over.
func (r *running) retire(next *running) {
	for _, z := range r.zones {
		z.Close()
	}
	for key, u := range r.forwards {
		if next == nil || next.forwards[key] != u {
			u.close()
		}
	}
}

// stop drains and closes everything.
func (s *server) stop() {
	s.mu.Lock()
	es, r := slices.Collect(maps.Values(s.endpoints)), s.current
	s.endpoints, s.current = nil, nil
	s.mu.Unlock()
	stopAll(es)
	if r != nil {
		r.retire(nil)
	}
}

// progress returns an error naming an endpoint that has a worker which did not turn its loop lately, or that has ended.
func (s *server) progress(within time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, e := range s.endpoints {
		select {
		case <-e.done:
			return fmt.Errorf("%s is served no more", at)
		default:
		}
		if since := time.Since(e.Progress()); since > within {
			return fmt.Errorf("a worker of %s has not come round for %v", at, since.Round(time.Millisecond))
		}
	}
	return nil
}

// addrs lists what is served.
func (s *server) addrs() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.endpoints), netip.AddrPort.Compare)
}

// asked lists what has to answer: what is served, and what questions are led to.
func (s *server) asked() []netip.AddrPort {
	all := slices.SortedFunc(slices.Values(append(s.addrs(), s.steered...)), netip.AddrPort.Compare)
	return slices.Compact(all)
}
