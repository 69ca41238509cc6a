package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
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
	own        []netip.Addr // addresses of the node room: bound one by one also where a block says all
	ifaceName  string
	limitsOf   func() listen.Config // limits of every endpoint
	interfaces func(name string) ([]netip.Addr, error)
}

// running is a configuration brought to life, before or while it serves.
type running struct {
	cfg       *corefile.Config
	text      string // canonical; equal text needs no reload
	endpoints map[netip.AddrPort]endpointSpec
	zones     []*resolve.Zone
	stores    map[string]*store.Store // by the settings they belong to
	forwards  map[string]*upstream    // by their settings
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
		cfg: cfg, text: cfg.String(), endpoints: make(map[netip.AddrPort]endpointSpec),
		stores: make(map[string]*store.Store), forwards: make(map[string]*upstream),
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
	for at, zones := range zonesAt {
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

// places gives the addresses and ports of each block.
func (b *builder) places(cfg *corefile.Config) ([]map[netip.AddrPort]bool, error) {
	var errs []error
	out := make([]map[netip.AddrPort]bool, len(cfg.Blocks))
	for i, block := range cfg.Blocks {
		out[i] = make(map[netip.AddrPort]bool)
		addrs, err := b.addrs(block)
		if err != nil {
			errs = append(errs, err)
		}
		for _, z := range block.Zones {
			for _, a := range addrs {
				out[i][netip.AddrPortFrom(a, z.Port)] = true
			}
		}
	}
	return out, errors.Join(errs...)
}

// addrs gives the addresses a block binds. A block that binds all addresses binds the node's own one by one besides: the
// guard's socket match is true only for a socket on that very address.
func (b *builder) addrs(block *corefile.Block) ([]netip.Addr, error) {
	var out, except []netip.Addr
	for _, bind := range block.Bind {
		addrs := []netip.Addr{bind.Addr}
		if bind.Interface != "" {
			var err error
			if addrs, err = b.addrsOf(bind.Interface); err != nil {
				return nil, &corefile.Problem{Pos: block.Pos, Directive: "bind", Text: err.Error()}
			}
		}
		if bind.Except {
			except = append(except, addrs...)
		} else {
			out = append(out, addrs...)
		}
	}
	if len(block.Bind) == 0 {
		out = []netip.Addr{netip.IPv6Unspecified()}
	}
	out = slices.DeleteFunc(out, func(a netip.Addr) bool { return slices.Contains(except, a) })
	if slices.Contains(out, netip.IPv6Unspecified()) { // serves IPv4 as well
		out = slices.DeleteFunc(out, func(a netip.Addr) bool { return a == netip.IPv4Unspecified() })
	}
	if slices.ContainsFunc(out, netip.Addr.IsUnspecified) {
		for _, a := range b.own {
			if !slices.Contains(except, a) && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	if len(out) == 0 {
		return nil, &corefile.Problem{Pos: block.Pos, Directive: "bind", Text: "no address is left"}
	}
	return out, nil
}

func (b *builder) addrsOf(name string) ([]netip.Addr, error) {
	if name == b.ifaceName && len(b.own) > 0 {
		return b.own, nil
	}
	addrs, err := b.interfaces(name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is neither an IP address nor an interface here: %w", name, err)
	case len(addrs) == 0:
		return nil, fmt.Errorf("interface %s has no address", name)
	}
	return addrs, nil
}

// interfaceAddrs reads the addresses of an interface of this host.
func interfaceAddrs(name string) ([]netip.Addr, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		addr := p.Addr().Unmap()
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(name)
		}
		out = append(out, addr)
	}
	return out, nil
}

// limits merges a block's timeouts into those of the endpoint; the last block that says something wins.
func (b *builder) limits(at netip.AddrPort, c listen.Config, t *corefile.Timeouts) listen.Config {
	if !c.Addr.IsValid() {
		c = b.limitsOf()
		c.Addr = at
	}
	if t == nil {
		return c
	}
	if t.Read > 0 {
		c.ReadTimeout = t.Read
	}
	if t.Write > 0 {
		c.WriteTimeout = t.Write
	}
	if t.Idle > 0 {
		c.IdleTimeout = t.Idle
	}
	return c
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
	if old != nil && old.stores[key] != nil {
		r.stores[key] = old.stores[key]
		return r.stores[key]
	}
	cfg := store.Config{Success: block.Cache.Success.Capacity, Denial: block.Cache.Denial.Capacity}
	if s := block.Cache.ServeStale; s != nil {
		cfg.Stale = s.For
	}
	r.stores[key] = store.New(cfg)
	return r.stores[key]
}

// unused tells apart equal keys of one configuration: the same zones on another address.
func unused[T any](m map[string]T, key string) string {
	for _, taken := m[key]; taken; _, taken = m[key] {
		key += "#"
	}
	return key
}

// routes makes a block's ways to its upstreams.
func (b *builder) routes(r, old *running, block *corefile.Block, places map[netip.AddrPort]bool) ([]resolve.Route, error) {
	var routes []resolve.Route
	var errs []error
	for _, f := range block.Forward {
		cfg, err := b.forwardConfig(block, f, places)
		if err != nil {
			errs = append(errs, &corefile.Problem{Pos: f.Pos, Directive: "forward", Text: strings.ReplaceAll(err.Error(), "\n", "; ")})
			continue
		}
		u, err := b.upstream(r, old, cfg, block, f)
		if err != nil {
			errs = append(errs, &corefile.Problem{Pos: f.Pos, Directive: "forward", Text: strings.ReplaceAll(err.Error(), "\n", "; ")})
			continue
		}
		for _, from := range f.From {
			routes = append(routes, resolve.Route{From: from, Except: f.Except, Upstream: u.forward})
		}
	}
	return routes, errors.Join(errs...)
}

func (b *builder) forwardConfig(block *corefile.Block, f *corefile.Forward, places map[netip.AddrPort]bool) (forward.Config, error) {
	cfg := forward.Config{
		ForceTCP: f.ForceTCP, ServerName: f.TLSServerName, ReadTimeout: f.ReadTimeout, Expire: f.Expire, MaxConcurrent: f.MaxConcurrent,
		MaxFails: f.MaxFails, HealthInterval: f.HealthCheck.Interval, HealthNoRec: f.HealthCheck.NoRec, HealthDomain: f.HealthCheck.Domain,
		FailFast: f.FailFast, MaxConns: f.MaxIdleConns,
	}
	switch f.Policy {
	case "round_robin":
		cfg.Policy = forward.RoundRobin
	case "sequential":
		cfg.Policy = forward.Sequential
	}
	for _, t := range f.Targets {
		if t.File != "" {
			cfg.ResolvConf = append(cfg.ResolvConf, t.File)
		} else {
			cfg.Targets = append(cfg.Targets, forward.Target{Addr: t.Addr, TLS: t.TLS, ServerName: t.ServerName})
		}
	}
	for _, code := range f.Failover {
		cfg.Failover = append(cfg.Failover, rcodeNumber(code))
	}
	if block.Loop {
		cfg.LoopZones = []string{block.Zones[0].Name}
	}
	// The block's own places only: to forward to another block of the same process, on another port, is no circle.
	cfg.Self = slices.SortedFunc(maps.Keys(places), netip.AddrPort.Compare)
	for _, t := range cfg.Targets {
		if slices.Contains(cfg.Self, t.Addr) {
			return cfg, fmt.Errorf("upstream %s is an address this block listens on: questions would go in a circle", t.Addr)
		}
	}
	if f.TLS != nil {
		var err error
		if cfg.TLS, err = tlsConfig(f.TLS); err != nil {
			return cfg, err
		}
	}
	return cfg, cfg.Validate()
}

func tlsConfig(t *corefile.TLS) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("reading the CA: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no PEM certificate", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("loading the client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
