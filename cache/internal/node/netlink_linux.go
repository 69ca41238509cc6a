package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// routeProtocol marks our spare local routes (rtm_protocol): the routing protocols registered with iproute2 leave this
// number alone, and it lets cleanup know our routes from all others.
const routeProtocol = 53

// spareMetric puts the spare route behind the kernel's own route for the address, which has metric 0.
const spareMetric = 1

// kernelLinks is links on this network namespace's kernel.
type kernelLinks struct {
	kind string // of the link to make
	events
}

func (k kernelLinks) Link(name string) (link, error) {
	l, err := linkByName(name)
	if err != nil {
		return link{}, err
	}
	out := link{Kind: l.Type(), Up: l.Attrs().Flags&net.FlagUp != 0}
	addrs, err := retried(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return link{}, fmt.Errorf("listing its addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			out.Addrs = append(out.Addrs, ip.Unmap())
		}
	}
	return out, nil
}

func linkByName(name string) (netlink.Link, error) {
	l, err := retried(func() (netlink.Link, error) { return netlink.LinkByName(name) })
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, errNoLink
	}
	return l, err
}

// retried repeats a dump that was interrupted by a change: its result may lack entries.
func retried[T any](dump func() (T, error)) (T, error) {
	var v T
	var err error
	for range 10 {
		if v, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return v, err
}

func (k kernelLinks) AddLink(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: k.kind})
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (this kernel lacks the %s module; load it on the host)", err, k.kind)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (the capability NET_ADMIN is missing)", err)
	}
	return err
}

func (k kernelLinks) SetUp(name string) error {
	l, err := linkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func (k kernelLinks) DelLink(name string) error {
	l, err := linkByName(name)
	if errors.Is(err, errNoLink) {
		return nil
	}
	if err != nil {
		return err
	}
	return ignore(netlink.LinkDel(l), unix.ENODEV)
}

func (k kernelLinks) AddAddr(name string, a netip.Addr) error {
	l, err := linkByName(name)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: hostNet(a)}
	if a.Is6() {
		// Without it the address is tentative for a second and cannot be bound.
		addr.Flags = unix.IFA_F_NODAD
	}
	err = netlink.AddrAdd(l, addr)
	if a.Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
		return fmt.Errorf("%w (is IPv6 switched off by net.ipv6.conf.*.disable_ipv6, or NET_ADMIN missing?)", err)
	}
	return ignore(err, unix.EEXIST)
}

func (k kernelLinks) DelAddr(name string, a netip.Addr) error {
	l, err := linkByName(name)
	if errors.Is(err, errNoLink) {
		return nil
	}
	if err != nil {
		return err
	}
	return ignore(netlink.AddrDel(l, &netlink.Addr{IPNet: hostNet(a)}), unix.EADDRNOTAVAIL)
}

func (k kernelLinks) Holders() (map[netip.Addr][]string, error) {
	all, err := retried(netlink.LinkList)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range all {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addrs, err := retried(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	out := map[netip.Addr][]string{}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			out[ip.Unmap()] = append(out[ip.Unmap()], names[a.LinkIndex])
		}
	}
	return out, nil
}

func (k kernelLinks) Spares() ([]netip.Addr, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol}
	var out []netip.Addr
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := retried(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		})
		if family == netlink.FAMILY_V6 && errors.Is(err, unix.EAFNOSUPPORT) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			if ip, ok := netip.AddrFromSlice(r.Dst.IP); ok && !slices.Contains(out, ip.Unmap()) {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}

// spare is the local route for a through the loopback link, which nobody takes away. The source is its preferred one.
func spare(a, source netip.Addr) (*netlink.Route, error) {
	lo, err := linkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("finding the loopback link: %w", err)
	}
	return &netlink.Route{
		LinkIndex: lo.Attrs().Index,
		Dst:       hostNet(a),
		Src:       source.AsSlice(),
		Type:      unix.RTN_LOCAL,
		Table:     unix.RT_TABLE_LOCAL,
		Scope:     netlink.SCOPE_HOST,
		Priority:  spareMetric,
		Protocol:  routeProtocol,
	}, nil
}

func (k kernelLinks) AddSpare(a, source netip.Addr) error {
	r, err := spare(a, source)
	if err != nil {
		return err
	}
	// Replace, not add: a route that somebody made beforehand (a unit at boot) becomes ours.
	return netlink.RouteReplace(r)
}

func (k kernelLinks) DelSpare(a netip.Addr) error {
	r, err := spare(a, netip.Addr{})
	if err != nil {
		return err
	}
	return ignore(netlink.RouteDel(r), unix.ESRCH)
}

// hostNet is a with a full-length prefix.
func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// ignore turns one errno into success: what was to be done had been done already.
func ignore(err error, errno unix.Errno) error {
	if errors.Is(err, errno) {
		return nil
	}
	return err
}

// kernelSets is sets on this network namespace's kernel.
type kernelSets struct{}

// setType is the only kind of set used: addresses, each with a timeout of its own.
const setType = "hash:ip"

func (kernelSets) EnsureSet(name string, fam family, ttl time.Duration) error {
	timeout := uint32(ttl / time.Second)
	opts := netlink.IpsetCreateOptions{Timeout: &timeout, Family: unix.AF_INET}
	if fam == v6 {
		opts.Family = unix.AF_INET6
	}
	err := netlink.IpsetCreate(name, setType, opts)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	// There is one of that name. Adopt it if it can do what ours must.
	have, err := netlink.IpsetList(name)
	if err != nil {
		return fmt.Errorf("looking at set %s: %w", name, err)
	}
	if have.TypeName != setType || have.Family != opts.Family || have.Timeout == nil {
		return conflict("set %s is there and of type %s, not %s with a timeout: remove it with ipset destroy", name, have.TypeName, setType)
	}
	return nil
}

func (kernelSets) AddSet(name string, a netip.Addr, ttl time.Duration) error {
	timeout := uint32(ttl / time.Second)
	// Replace: an entry that is there gets the new timeout.
	return netlink.IpsetAdd(name, &netlink.IPSetEntry{IP: a.AsSlice(), Timeout: &timeout, Replace: true})
}

func (kernelSets) DelSet(name string, a netip.Addr) error {
	err := netlink.IpsetDel(name, &netlink.IPSetEntry{IP: a.AsSlice(), Replace: true})
	if errors.Is(err, nl.IPSetError(nl.IPSET_ERR_EXIST)) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (kernelSets) DestroySet(name string) error {
	err := netlink.IpsetDestroy(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
