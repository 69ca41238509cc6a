package resolve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// Zone answers the questions of one server block.
type Zone struct {
	cfg   ZoneConfig
	names [][]byte
	store *store.Store // nil: nothing is cached
	rules []rule
	cut   *cutter // nil: no search cut
	empty bool    // nobody to ask, here or upstream: REFUSED, as if there were no such zone

	cacheZones, disableSuccess, disableDenial [][]byte
	routes                                    []route

	flights  flights
	turn     func() uint32          // by how much addresses are turned, with LoadBalance
	router   atomic.Pointer[Router] // by which the ends of aliases are looked up
	counting sync.Once
	extra    *zoneCounts // set before the zone is served

	ctx      context.Context // of background work
	stop     context.CancelFunc
	bg       sync.WaitGroup
	mu       sync.Mutex // guards what follows, and bg against Close
	renewals map[*store.Entry]*renewal
}

type route struct {
	from     []byte
	except   [][]byte
	upstream Upstream
}

// NewZone returns a zone that is ready; the error is that of cfg.Validate. The zone must
// be closed.
func NewZone(cfg ZoneConfig) (*Zone, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("checking zone: %w", err)
	}
	cfg = cfg.withDefaults()
	z := &Zone{
		cfg:            cfg,
		names:          mustNames(cfg.Names),
		store:          cfg.Store,
		cacheZones:     mustNames(cfg.Cache.Zones),
		disableSuccess: mustNames(cfg.Cache.DisableSuccess),
		disableDenial:  mustNames(cfg.Cache.DisableDenial),
		renewals:       make(map[*store.Entry]*renewal),
		empty:          len(cfg.Routes) == 0 && len(cfg.Local) == 0 && cfg.Last == nil,
	}
	for _, r := range cfg.Rewrites {
		rule, err := newRule(r)
		if err != nil {
			return nil, fmt.Errorf("checking zone: %w", err)
		}
		z.rules = append(z.rules, rule)
	}
	for _, r := range cfg.Routes {
		z.routes = append(z.routes, route{
			from: mustNames([]string{r.From})[0], except: mustNames(r.Except), upstream: r.Upstream,
		})
	}
	if len(cfg.SearchCut) > 0 && cfg.Store != nil {
		z.cut = newCutter(mustNames(cfg.SearchCut))
	}
	z.flights.init()
	// A counter would not do: clients ask for A and AAAA by turns, and one of the two
	// would always get the same order.
	z.turn = rand.Uint32
	z.extra = &zoneCounts{}
	z.ctx, z.stop = context.WithCancel(context.Background())
	return z, nil
}

// mustNames parses names that Validate has seen.
func mustNames(names []string) [][]byte {
	var out [][]byte
	for _, n := range names {
		if b, err := wire.ParseName(n); err == nil {
			out = append(out, b)
		}
	}
	return out
}

// Close ends the zone's background work and returns when it has ended. Queries under way
// still get their answers.
func (z *Zone) Close() {
	z.mu.Lock()
	z.stop()
	z.mu.Unlock()
	z.bg.Wait()
	z.extra.retire(z)
}

// under tells whether name lies in one of zones.
func under(name []byte, zones [][]byte) bool {
	for _, z := range zones {
		if wire.Under(name, z) {
			return true
		}
	}
	return false
}

// cacheFor returns the store for name, or nil if it is not to be cached.
func (z *Zone) cacheFor(name []byte) *store.Store {
	if z.cacheZones != nil && !under(name, z.cacheZones) {
		return nil
	}
	return z.store
}

// countOn makes the zone count under the first server that it is given to.
func (z *Zone) countOn(m *Metrics, server string) {
	if m == nil {
		return
	}
	z.counting.Do(func() { z.extra = m.zone(server, wire.FormatName(z.names[0])) })
}
