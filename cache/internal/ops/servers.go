package ops

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Kind says what an endpoint serves.
type Kind string

// The kinds of endpoints.
const (
	Health  Kind = "health"
	Ready   Kind = "ready"
	Metrics Kind = "metrics"
	PProf   Kind = "pprof"
)

// path is where the kind is found on its server.
func (k Kind) path() string {
	switch k {
	case Health:
		return "/health"
	case Ready:
		return "/ready"
	case Metrics:
		return "/metrics"
	case PProf:
		return "/debug/pprof/"
	}
	return "/"
}

// Endpoint is one handler on one address. Endpoints of the same address share a server.
type Endpoint struct {
	Kind    Kind
	Addr    string // host:port; the host may be empty
	Handler http.Handler
}

// retryAfter is how long a taken address is left alone before it is tried again.
const retryAfter = time.Second

// Servers keeps web servers running on the addresses it was told. Its methods may be called from many goroutines.
type Servers struct {
	log     *slog.Logger
	metrics *ProcessMetrics
	wake    chan struct{} // holds one token when there is something to do

	mu     sync.Mutex
	wanted map[string]*site // by address
	failed map[string]error // addresses that cannot be served now
}

// site is what one address serves.
type site struct {
	handler atomic.Pointer[http.ServeMux]
	kinds   []Kind
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.Load().ServeHTTP(w, r) }

// NewServers returns Servers that serve nothing yet. metrics may be nil.
func NewServers(log *slog.Logger, metrics *ProcessMetrics) *Servers {
	if metrics == nil {
		metrics = NewMetrics(nil, Build{}, nil)
	}
	return &Servers{log: log, metrics: metrics, wake: make(chan struct{}, 1), wanted: make(map[string]*site), failed: make(map[string]error)}
}

// Set says what is to be served from now on. It does not wait for it.
func (s *Servers) Set(endpoints []Endpoint) {
	muxes := make(map[string]*http.ServeMux)
	kinds := make(map[string][]Kind)
	for _, e := range endpoints {
		if slices.Contains(kinds[e.Addr], e.Kind) {
			continue // several server blocks name the same endpoint
		}
		if muxes[e.Addr] == nil {
			muxes[e.Addr] = http.NewServeMux()
		}
		muxes[e.Addr].Handle(e.Kind.path(), e.Handler)
		kinds[e.Addr] = append(kinds[e.Addr], e.Kind)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.wanted, func(addr string, _ *site) bool { return muxes[addr] == nil })
	for addr, mux := range muxes {
		if s.wanted[addr] == nil {
			s.wanted[addr] = &site{}
		}
		s.wanted[addr].handler.Store(mux)
		s.wanted[addr].kinds = kinds[addr]
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Failed lists the addresses that are wanted but not served, each with its reason; nil when all is well.
func (s *Servers) Failed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, addr := range slices.Sorted(maps.Keys(s.failed)) {
		out = append(out, fmt.Sprintf("%s %v", addr, s.failed[addr]))
	}
	return out
}

// Run serves until ctx ends, then closes everything and returns nil.
func (s *Servers) Run(ctx context.Context) error {
	running := make(map[string]*server)
	defer func() {
		for _, r := range running {
			r.close(s.log)
		}
	}()
	retry := time.NewTimer(retryAfter)
	defer retry.Stop()
	for {
		if s.reconcile(ctx, running) {
			retry.Reset(retryAfter)
		} else {
			retry.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-retry.C:
		}
	}
}

// reconcile makes the running servers the wanted ones. It reports whether some address has to be tried again.
func (s *Servers) reconcile(ctx context.Context, running map[string]*server) (again bool) {
	s.mu.Lock()
	wanted := maps.Clone(s.wanted)
	s.mu.Unlock()
	for addr, r := range running {
		if wanted[addr] != r.site {
			r.close(s.log)
			delete(running, addr)
		}
	}
	failed := make(map[string]error)
	for _, addr := range slices.Sorted(maps.Keys(wanted)) {
		if running[addr] != nil {
			continue
		}
		r, err := s.serve(ctx, addr, wanted[addr])
		if err != nil {
			failed[addr] = err
			continue
		}
		running[addr] = r
	}
	s.report(failed, wanted)
	return len(failed) > 0
}

// report sets the gauges and logs what changed.
func (s *Servers) report(failed map[string]error, wanted map[string]*site) {
	s.mu.Lock()
	before := s.failed
	s.failed = failed
	kinds := make(map[string][]Kind)
	for addr, w := range wanted {
		kinds[addr] = w.kinds
	}
	s.mu.Unlock()
	s.metrics.endpoints(kinds, failed)
	for _, addr := range slices.Sorted(maps.Keys(failed)) {
		if old := before[addr]; old == nil || old.Error() != failed[addr].Error() {
			s.log.Warn("web server cannot listen, DNS goes on, trying again", "address", addr, "serves", kinds[addr], "every", retryAfter, "error", failed[addr])
		}
	}
	for addr := range before {
		if failed[addr] == nil && wanted[addr] != nil {
			s.log.Info("web server listens at last", "address", addr)
		}
	}
}
