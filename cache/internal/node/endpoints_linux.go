package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// proxyTable and serviceMap are kube-proxy's in nftables mode: the map leads from address, protocol and port to a chain.
const (
	proxyTable = "kube-proxy"
	serviceMap = "service-ips"
)

// proxyRules reads kube-proxy's nftables rules.
type proxyRules struct{}

// ProxyEndpoints implements endpointReader.
func (proxyRules) ProxyEndpoints(to netip.AddrPort) ([]netip.AddrPort, error) {
	family := nftables.TableFamilyIPv4
	if to.Addr().Is6() {
		family = nftables.TableFamilyIPv6
	}
	w := walk{conn: &nftables.Conn{}, table: &nftables.Table{Name: proxyTable, Family: family}, size: to.Addr().BitLen() / 8}
	if _, err := w.conn.ListTableOfFamily(proxyTable, family); errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	set, err := w.conn.GetSetByName(w.table, serviceMap)
	if err != nil {
		return nil, fmt.Errorf("reading kube-proxy's map %s: %w", serviceMap, err)
	}
	elements, err := w.conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("reading kube-proxy's map %s: %w", serviceMap, err)
	}
	// Each part of a key takes whole words of four bytes.
	key := append(to.Addr().AsSlice(), unix.IPPROTO_UDP, 0, 0, 0)
	key = append(binary.BigEndian.AppendUint16(key, to.Port()), 0, 0)
	for _, e := range elements {
		if string(e.Key) == string(key) {
			return w.chain(leadsTo(e), 0)
		}
	}
	return nil, nil
}

// walk follows chains to the addresses they translate to.
type walk struct {
	conn  *nftables.Conn
	table *nftables.Table
	size  int // of an address
}

// chain reads one chain: a Service's with its only endpoint or with a map of all, or, of older versions, one that leads
// on to a chain for each endpoint.
func (w walk) chain(name string, depth int) ([]netip.AddrPort, error) {
	if depth > 3 || name == "" {
		return nil, nil
	}
	rules, err := w.conn.GetRules(w.table, &nftables.Chain{Name: name, Table: w.table})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // replaced while we look
	}
	if err != nil {
		return nil, fmt.Errorf("reading kube-proxy's chain %s: %w", name, err)
	}
	var out []netip.AddrPort
	for _, r := range rules {
		registers := map[uint32][]byte{}
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Immediate:
				registers[e.Register] = e.Data
			case *expr.NAT:
				if ap, ok := addrPort(registers[e.RegAddrMin], registers[e.RegProtoMin]); ok && e.Type == expr.NATTypeDestNAT {
					out = append(out, ap)
				}
			case *expr.Lookup:
				found, err := w.lookup(e, depth)
				if err != nil {
					return nil, err
				}
				out = append(out, found...)
			}
		}
	}
	return out, nil
}

// lookup reads a map that a rule looks into.
func (w walk) lookup(l *expr.Lookup, depth int) ([]netip.AddrPort, error) {
	if !l.IsDestRegSet {
		return nil, nil // a set: nothing comes out of it
	}
	set, err := w.conn.GetSetByName(w.table, l.SetName)
	if err != nil {
		return nil, fmt.Errorf("reading kube-proxy's map %s: %w", l.SetName, err)
	}
	elements, err := w.conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("reading kube-proxy's map %s: %w", l.SetName, err)
	}
	var out []netip.AddrPort
	for _, e := range elements {
		if chain := leadsTo(e); chain != "" {
			found, err := w.chain(chain, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, found...)
		} else if len(e.Val) >= w.size+2 {
			if ap, ok := addrPort(e.Val[:w.size], e.Val[w.size:w.size+2]); ok {
				out = append(out, ap)
			}
		}
	}
	return out, nil
}

// leadsTo is the chain an element of a verdict map leads to, empty for other elements. The library does not know the
// type of maps it did not make and gives the verdict as the attributes it came in.
func leadsTo(e nftables.SetElement) string {
	if e.VerdictData != nil {
		return e.VerdictData.Chain
	}
	attrs, err := netlink.NewAttributeDecoder(e.Val)
	if err != nil {
		return "" // an address and a port
	}
	for attrs.Next() {
		if attrs.Type() == unix.NFTA_VERDICT_CHAIN {
			return attrs.String()
		}
	}
	return ""
}

func addrPort(addr, port []byte) (netip.AddrPort, bool) {
	a, ok := netip.AddrFromSlice(addr)
	if !ok || len(port) < 2 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)), true
}
