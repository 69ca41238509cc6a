package main

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/forward"
	"github.com/nodedns/nodedns/cache/internal/listen"
	"github.com/nodedns/nodedns/cache/internal/resolve"
	"github.com/nodedns/nodedns/cache/internal/store"
)

// builder makes the running parts a configuration stands for. What it is given outlives any one configuration.
type builder struct {
	log        *slog.Logger
	stdout     io.Writer // for the log directive
	resolve    *resolve.Metrics
	forward    *forward.Metrics
	nonce      string
	memory     int64        // bytes the process may take; 0: no limit
	own        []netip.Addr // addresses of the node room: bound one by one also where a block says all
	ifaceName  string
	limitsOf   func() listen.Config // limits of every endpoint
	interfaces func(name string) ([]netip.Addr, error)
}

// running is a configuration brought to life, before or while it serves.
type running struct {
	cfg       *corefile.Config
	text      string // canonical
	meaning   string // all that decides what is built: equal meaning needs no reload
	endpoints map[netip.AddrPort]endpointSpec
	zones     []*resolve.Zone
	stores    map[string]*store.Store    // by the settings they belong to
	bounds    map[*store.Store]int64     // bytes each of them may take
	forwards  map[string]*upstream       // by their settings
	probes    map[string]*forward.Probes // by their block
}

// endpointSpec is what one address and port serves.
type endpointSpec struct {
	listen listen.Config
	router *resolve.Router
}

// build makes cfg's parts. Stores and upstreams of old whose settings are the same are taken over; old may be nil. On error
// nothing is left behind.
func (b *builder) build(cfg *corefile.Config, old *running) (_ *running, err error) {
	r := &running{
		cfg: cfg, text: cfg.String(), meaning: b.meaning(cfg), endpoints: make(map[netip.AddrPort]endpointSpec),
		stores: make(map[string]*store.Store), bounds: make(map[*store.Store]int64), forwards: make(map[string]*upstream), probes: make(map[string]*forward.Probes),
	}
	defer func() {
		if err != nil {
			r.discard(old)
		}
	}()
	places, err := b.places(cfg)
	if err != nil {
		return nil, err
	}
	zonesAt := make(map[netip.AddrPort][]*resolve.Zone)
	limits := make(map[netip.AddrPort]listen.Config)
	var errs []error
	for i, block := range cfg.Blocks {
		zones, err := b.zones(r, old, block, places[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for at := range places[i] {
			zonesAt[at] = append(zonesAt[at], zones[at.Port()])
			limits[at] = b.limits(at, limits[at], block.Timeouts)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	// In order, since a zone on several addresses counts on the first.
	for _, at := range slices.SortedFunc(maps.Keys(zonesAt), netip.AddrPort.Compare) {
		zones := zonesAt[at]
		r.endpoints[at] = endpointSpec{listen: limits[at], router: resolve.NewRouter(resolve.RouterConfig{
			Server: "dns://" + at.String(), Zones: zones, Nonce: b.nonce, Metrics: b.resolve,
		})}
	}
	return r, nil
}

// discard closes what was made and is not old's.
func (r *running) discard(old *running) {
	for _, z := range r.zones {
		z.Close()
	}
	for key, u := range r.forwards {
		if old == nil || old.forwards[key] != u {
			u.close()
		}
	}
}

// zones makes a block's zone for each port it has keys of, all with the same store, upstreams and local answers.
func (b *builder) zones(r, old *running, block *corefile.Block, places map[netip.AddrPort]bool) (map[uint16]*resolve.Zone, error) {
	names := make(map[uint16][]string)
	for _, z := range block.Zones {
		names[z.Port] = append(names[z.Port], z.Name)
	}
	cfg, err := b.zoneConfig(block)
	if err != nil {
		return nil, err
	}
	if cfg.Routes, err = b.routes(r, old, block, places); err != nil {
		return nil, err
	}
	cfg.Store = b.store(r, old, block)
	zones := make(map[uint16]*resolve.Zone)
	for port, ns := range names {
		cfg.Names = ns
		z, err := resolve.NewZone(cfg)
		if err != nil {
			return nil, &corefile.Problem{Pos: block.Pos, Text: strings.ReplaceAll(err.Error(), "\n", "; ")}
		}
		r.zones = append(r.zones, z)
		zones[port] = z
	}
	return zones, nil
}

// settings is the text of all that decides what a block's answers are: two blocks of the same settings may share what they
// have learned.
func settings(block *corefile.Block) string {
	b := *block
	b.Bind, b.Errors, b.Log, b.Reload, b.Prometheus, b.Health, b.Ready, b.PProf, b.Timeouts = nil, nil, nil, nil, nil, nil, nil, nil, nil
	b.Debug, b.Loop, b.BufSize, b.LoadBalance = false, false, 0, nil
	return b.String()
}

// store gives a block its memory, the old one if its settings have not changed.
func (b *builder) store(r, old *running, block *corefile.Block) *store.Store {
	if block.Cache == nil {
		return nil
	}
	key := unused(r.stores, settings(block))
	cfg := storeConfig(block.Cache)
	cfg.Bytes = b.share(r.cfg, cfg.MaxBytes())
	var s *store.Store
	if old != nil {
		s = old.stores[key]
	}
	if s == nil {
		s = store.New(cfg)
	}
	r.stores[key], r.bounds[s] = s, cfg.Bytes
	return s
}

func storeConfig(c *corefile.Cache) store.Config {
	cfg := store.Config{Success: c.Success.Capacity, Denial: c.Denial.Capacity}
	if s := c.ServeStale; s != nil {
		cfg.Stale = s.For
	}
	return cfg
}

// share is what a memory that would take want bytes gets, so that all memories of cfg together take no more than half of what
// the process may: the other half is for the garbage that the collector leaves, buffers and everything else.
func (b *builder) share(cfg *corefile.Config, want int64) int64 {
	var all int64
	for _, block := range cfg.Blocks {
		if block.Cache != nil {
			all += storeConfig(block.Cache).MaxBytes()
		}
	}
	if b.memory == 0 || all <= b.memory/2 {
		return want
	}
	return int64(float64(b.memory/2) * float64(want) / float64(all))
}

// unused tells apart equal keys of one configuration: the same zones on another address.
func unused[T any](m map[string]T, key string) string {
	for _, taken := m[key]; taken; _, taken = m[key] {
		key += "#"
	}
	return key
}
