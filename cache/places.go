package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/listen"
	"github.com/nodedns/nodedns/cache/internal/node"
)

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

// steeredTo lists the addresses to which the rules of the node will lead questions, as far as flags and environment tell. In
// which modes those of the cluster DNS are among them does not depend on whether -localip names them too (dropClusterIPs).
func steeredTo(o *options, mode node.Mode, c cluster) []netip.AddrPort {
	addrs := slices.DeleteFunc(slices.Clone(o.localIPs), func(a netip.Addr) bool { return slices.Contains(c.dns, a) })
	if mode != node.IPVS && mode != "" {
		addrs = append(addrs, c.dns...)
	}
	var out []netip.AddrPort
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a, o.dnsPort))
	}
	return out
}

// covers returns an error if cfg leaves out an address to which questions will be led. It looks at the text alone, so that a
// Corefile of another node is refused before anything is touched; the node's interface need not exist.
func (b *builder) covers(cfg *corefile.Config, o *options, mode node.Mode, c cluster) error {
	if !o.managesNode() {
		return nil
	}
	steered := steeredTo(o, mode, c)
	b.ifaceName, b.own = o.interfaceName, nil
	for _, at := range steered {
		b.own = append(b.own, at.Addr())
	}
	blocks, err := b.places(cfg)
	if err != nil {
		return err
	}
	return unserved(steered, func(at netip.AddrPort) bool {
		return slices.ContainsFunc(blocks, func(places map[netip.AddrPort]bool) bool { return places[at] })
	})
}

// unserved returns an error that names the steered addresses which nobody serves.
func unserved(steered []netip.AddrPort, served func(netip.AddrPort) bool) error {
	var missing []string
	for _, at := range steered {
		if !served(at) {
			missing = append(missing, at.String())
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("no server block of the Corefile binds %s, to which this node's questions would go: add it to bind, or take it out of -localip or -cluster-dns",
		strings.Join(missing, " and "))
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
