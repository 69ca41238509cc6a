package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// errNoLink says that a link is not there.
var errNoLink = errors.New("no such link")

// links is what the node room needs of rtnetlink. A fake stands in for it in tests.
type links interface {
	// Link describes a link; errNoLink if there is none of that name.
	Link(name string) (link, error)
	// AddLink makes the link, down and without addresses.
	AddLink(name string) error
	SetUp(name string) error
	// DelLink removes the link and its addresses; no error if it is gone.
	DelLink(name string) error
	// AddAddr adds a with a full-length prefix (IPv6 without duplicate address detection); no error if it is there.
	AddAddr(name string, a netip.Addr) error
	// DelAddr removes a; no error if it is gone.
	DelAddr(name string, a netip.Addr) error
	// Holders maps each address of the host to the links that carry it.
	Holders() (map[netip.Addr][]string, error)
	// Spares lists the addresses for which there is a spare local route of ours.
	Spares() ([]netip.Addr, error)
	// AddSpare makes the route that keeps a local while the link is gone, in place of one that is there. If a is on no link,
	// programs of the host that ask a have source as their address; the zero source is a itself.
	AddSpare(a, source netip.Addr) error
	// DelSpare removes that route; no error if it is gone.
	DelSpare(a netip.Addr) error
	// Watch returns a channel that is sent to, without ever blocking the sender, after links, addresses or routes
	// changed. It is closed when ctx ends.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// link is a link as the kernel has it.
type link struct {
	Kind  string
	Up    bool
	Addrs []netip.Addr
}

// kindOurs is the kind of link we make: a dummy carries addresses and nothing else.
const kindOurs = "dummy"

// checkConflicts says what of somebody else stands in the way of addrs on the link. It changes nothing.
func (n *Node) checkConflicts(addrs []netip.Addr) error {
	l, err := n.links.Link(n.cfg.Link)
	switch {
	case errors.Is(err, errNoLink):
	case err != nil:
		return fmt.Errorf("looking at link %s: %w", n.cfg.Link, err)
	case l.Kind != n.kind:
		return conflict("link %s is there and of kind %q, not %q: remove or rename it, or choose another name", n.cfg.Link, l.Kind, n.kind)
	}
	held, err := n.links.Holders()
	if err != nil {
		return fmt.Errorf("listing the addresses of the host: %w", err)
	}
	var errs []error
	for _, a := range addrs {
		for _, on := range held[a] {
			// The loopback link may carry a copy as a spare.
			if on != n.cfg.Link && on != "lo" {
				errs = append(errs, conflict("address %s is on link %s: remove it there or choose another local address", a, on))
			}
		}
	}
	return errors.Join(errs...)
}

// applyLink makes link, addresses and spare routes as they should be and returns the addresses that are local now. What
// it had to put back it counts, unless first says that nothing was expected to be there.
func (n *Node) applyLink(addrs []netip.Addr, first bool) []netip.Addr {
	repaired := func(kind string) {
		if !first {
			n.m.repairs.WithLabelValues(kind).Inc()
			n.log.Warn("put back a part of the node", "kind", kind)
		}
	}
	kept := n.kept()
	onLink := func(a netip.Addr) bool { return !sourceOf(a, kept).IsValid() }
	// The spare route comes first: with it the address is local whatever happens to the link.
	local, linked := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	spares, err := n.links.Spares()
	for _, a := range addrs {
		if err == nil && slices.Contains(spares, a) && !first { // a predecessor's may have another source
			local[a] = true
			continue
		}
		if addErr := n.links.AddSpare(a, sourceOf(a, kept)); addErr != nil {
			err = errors.Join(err, fmt.Errorf("adding the spare local route for %s: %w", a, addErr))
			continue
		}
		local[a] = true
		repaired("route")
	}
	_ = n.problems.note(stepRoute, 0, err)

	if n.problems.note(stepLink, 0, n.ensureLink(repaired)) == nil {
		l, err := n.links.Link(n.cfg.Link)
		for _, a := range addrs {
			there := slices.Contains(l.Addrs, a)
			if there && local[a] && !onLink(a) {
				err = errors.Join(err, n.links.DelAddr(n.cfg.Link, a)) // with it there, clients would have it as their source
			}
			if err != nil || there || !onLink(a) {
				continue
			}
			if addErr := n.links.AddAddr(n.cfg.Link, a); addErr != nil {
				err = errors.Join(err, fmt.Errorf("adding %s to link %s: %w", a, n.cfg.Link, addErr))
				continue
			}
			repaired("address")
		}
		// Looked at again: there have been kernels and managers that took the address without keeping it.
		if l, lookErr := n.links.Link(n.cfg.Link); lookErr == nil {
			for _, a := range addrs {
				if slices.Contains(l.Addrs, a) {
					linked[a] = true
				} else if err == nil && onLink(a) {
					err = fmt.Errorf("address %s is not on link %s right after it was added: something removes it", a, n.cfg.Link)
				}
			}
		}
		_ = n.problems.note(stepAddress, 0, err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		// IPv4 sockets bind by the local route, IPv6 sockets only by the address.
		if linked[a] || a.Is4() && local[a] {
			out = append(out, a)
		}
	}
	return out
}

// sourceOf is the address that programs of the host have when they ask a. It is a itself, as always with local addresses, and
// then the zero one is returned. But a ClusterIP ceases to be local when the cache leaves, and takes with it the answers
// that are on their way to it, and the questions from sockets that are connected by then. Hence in IPv4 its clients have
// an address that stays, and it is on no link, since an address on a link is the source before any other. In IPv6 it
// must be on a link to be bound. kept are the addresses that stay.
func sourceOf(a netip.Addr, kept []netip.Addr) netip.Addr {
	of := familyOf(a).of(kept)
	if !a.Is4() || len(of) == 0 || slices.Contains(of, a) {
		return netip.Addr{}
	}
	return of[0]
}

// ensureLink makes the link and sets it up.
func (n *Node) ensureLink(repaired func(kind string)) error {
	l, err := n.links.Link(n.cfg.Link)
	if errors.Is(err, errNoLink) {
		if err := n.links.AddLink(n.cfg.Link); err != nil {
			return fmt.Errorf("making link %s of kind %s: %w", n.cfg.Link, n.kind, err)
		}
		repaired("link")
		l, err = n.links.Link(n.cfg.Link)
	}
	if err != nil {
		return fmt.Errorf("looking at link %s: %w", n.cfg.Link, err)
	}
	if l.Kind != n.kind {
		return conflict("link %s has become one of kind %q", n.cfg.Link, l.Kind)
	}
	if !l.Up {
		if err := n.links.SetUp(n.cfg.Link); err != nil {
			return fmt.Errorf("setting link %s up: %w", n.cfg.Link, err)
		}
		repaired("link-up")
	}
	return nil
}

// dropAddr makes a no longer local.
func (n *Node) dropAddr(a netip.Addr) error {
	return errors.Join(n.links.DelAddr(n.cfg.Link, a), n.links.DelSpare(a))
}

// dropOld removes addresses of an earlier configuration: those for which there is a spare route of ours that nobody
// wants any more. Other addresses on the link are somebody else's business.
func (n *Node) dropOld(want []netip.Addr) error {
	spares, err := n.links.Spares()
	if err != nil {
		return fmt.Errorf("listing spare local routes: %w", err)
	}
	var errs []error
	for _, a := range spares {
		if slices.Contains(want, a) {
			continue
		}
		n.log.Info("removing an address of an earlier configuration", "address", a.String())
		if err := n.dropAddr(a); err != nil {
			errs = append(errs, fmt.Errorf("removing old address %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}
