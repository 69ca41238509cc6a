package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// flows is what the node room needs of connection tracking. A fake stands in for it in tests.
type flows interface {
	// Forget makes the kernel forget the flows of a family over the protocols (unix.IPPROTO_UDP, unix.IPPROTO_TCP) between clients
	// and addrs at port that nothing translated. As long as it knows them, whoever asks from the same port is sent to the
	// cache, there or not.
	Forget(fam family, addrs []netip.Addr, port uint16, protocols ...uint8) error
}

// kernelFlows is flows on this network namespace's kernel.
type kernelFlows struct{}

// Forget implements flows.
func (kernelFlows) Forget(fam family, addrs []netip.Addr, port uint16, protocols ...uint8) error {
	inet := netlink.InetFamily(netlink.FAMILY_V4)
	if fam == v6 {
		inet = netlink.FAMILY_V6
	}
	// An interrupted dump lacks entries; the ones it has are deleted.
	for range 3 {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, inet, untranslated{addrs, port, protocols})
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			if err != nil {
				return fmt.Errorf("forgetting flows to the cache: %w", err)
			}
			return nil
		}
	}
	return nil
}

// untranslated matches flows between clients and addrs at port, whichever side the kernel saw first: once a flow is
// forgotten, an answer that comes later opens one of its own.
type untranslated struct {
	addrs     []netip.Addr
	port      uint16
	protocols []uint8
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (u untranslated) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return slices.Contains(u.protocols, f.Forward.Protocol) && f.Reverse.SrcIP.Equal(f.Forward.DstIP) && f.Reverse.DstIP.Equal(f.Forward.SrcIP) &&
		(u.ours(f.Forward.DstIP, f.Forward.DstPort) || u.ours(f.Forward.SrcIP, f.Forward.SrcPort))
}

func (u untranslated) ours(ip net.IP, port uint16) bool {
	a, ok := netip.AddrFromSlice(ip)
	return ok && port == u.port && slices.Contains(u.addrs, a.Unmap())
}
