package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/forward"
	"github.com/nodedns/nodedns/cache/internal/resolve"
)

// routes makes a block's ways to its upstreams.
func (b *builder) routes(r, old *running, block *corefile.Block, places map[netip.AddrPort]bool) ([]resolve.Route, error) {
	var routes []resolve.Route
	var errs []error
	probes := b.probes(r, old, block, places)
	for _, f := range block.Forward {
		digest := tlsDigest(f.TLS) // before they are read: if they change meanwhile, the next reload finds out
		cfg, err := b.forwardConfig(block, f, places)
		if err != nil {
			errs = append(errs, &corefile.Problem{Pos: f.Pos, Directive: "forward", Text: strings.ReplaceAll(err.Error(), "\n", "; ")})
			continue
		}
		cfg.Probes = probes
		u, err := b.upstream(r, old, cfg, digest, block, f)
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
		FailFast: f.FailFast, MaxIdleConns: f.MaxIdleConns,
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
	cfg.LoopZones = loopZones(block, f)
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

// probes gives a block's forwards what lets them know each other's loop probes, the old one for a block of old, since its
// forwards may be taken over. Not one for all blocks: to forward to another block of the same process is no loop.
func (b *builder) probes(r, old *running, block *corefile.Block, places map[netip.AddrPort]bool) *forward.Probes {
	key := unused(r.probes, fmt.Sprint(block.Zones, slices.SortedFunc(maps.Keys(places), netip.AddrPort.Compare)))
	if old != nil && old.probes[key] != nil {
		r.probes[key] = old.probes[key]
	} else {
		r.probes[key] = new(forward.Probes)
	}
	return r.probes[key]
}

// loopZones lists the zones whose names go to f. Each is probed for itself: an upstream may send back one of them and know
// the others.
func loopZones(block *corefile.Block, f *corefile.Forward) []string {
	if !block.Loop {
		return nil
	}
	var zones []string
	for _, zone := range block.Zones {
		for _, from := range f.From {
			narrower := zone.Name
			switch {
			case dns.IsSubDomain(from, zone.Name):
			case dns.IsSubDomain(zone.Name, from):
				narrower = from
			default:
				continue
			}
			if forwardOf(block, narrower) == f && !slices.Contains(zones, narrower) {
				zones = append(zones, narrower)
			}
		}
	}
	return zones
}

// forwardOf returns the directive by which names in zone go, or nil: the first that matches, as everywhere.
func forwardOf(block *corefile.Block, zone string) *corefile.Forward {
	under := func(parent string) bool { return dns.IsSubDomain(parent, zone) }
	for _, f := range block.Forward {
		if slices.ContainsFunc(f.From, under) && !slices.ContainsFunc(f.Except, under) {
			return f
		}
	}
	return nil
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
