package wire

import (
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// AppendReordered is AppendReply with the addresses and mail exchangers of the answer
// turned by turn places, and addresses in preferred networks before others. It goes
// through miekg/dns.
func (a *Answer) AppendReordered(dst []byte, q *Query, t Terms, turn uint32, prefer []netip.Prefix) []byte {
	base := len(dst)
	whole := t
	whole.Transport = TCP
	var m dns.Msg
	if err := m.Unpack(a.AppendReply(nil, q, whole)); err != nil {
		return a.AppendReply(dst, q, t)
	}
	m.Answer = reorder(m.Answer, turn, prefer)
	m.Compress = true
	limit := q.limit(t)
	if m.Len() > limit {
		m.Truncate(limit)
	}
	packed, err := m.Pack()
	if err != nil || len(packed) > limit {
		return a.AppendReply(dst[:base], q, t)
	}
	return append(dst, packed...)
}

// reorder returns rrs with aliases and the like first, then addresses, then mail
// exchangers.
func reorder(rrs []dns.RR, turn uint32, prefer []netip.Prefix) []dns.RR {
	var rest, preferred, addresses, exchangers []dns.RR
	for _, rr := range rrs {
		switch rr.Header().Rrtype {
		case dns.TypeA, dns.TypeAAAA:
			if isIn(rr, prefer) {
				preferred = append(preferred, rr)
			} else {
				addresses = append(addresses, rr)
			}
		case dns.TypeMX:
			exchangers = append(exchangers, rr)
		default:
			rest = append(rest, rr)
		}
	}
	return slices.Concat(rest, turned(preferred, turn), turned(addresses, turn), turned(exchangers, turn))
}

func turned(rrs []dns.RR, turn uint32) []dns.RR {
	if len(rrs) < 2 {
		return rrs
	}
	n := int(turn % uint32(len(rrs)))
	return slices.Concat(rrs[n:], rrs[:n])
}

func isIn(rr dns.RR, networks []netip.Prefix) bool {
	var addr netip.Addr
	switch rr := rr.(type) {
	case *dns.A:
		addr, _ = netip.AddrFromSlice(rr.A.To4())
	case *dns.AAAA:
		addr, _ = netip.AddrFromSlice(rr.AAAA)
	}
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}
