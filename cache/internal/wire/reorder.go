package wire

import (
	"slices"

	"github.com/miekg/dns"
)

// AppendReordered is AppendReply for answers with records that Terms.Rotate leaves in
// their places there: mail exchangers, whose names need packing anew. It goes through
// miekg/dns.
func (a *Answer) AppendReordered(dst []byte, q *Query, t Terms) []byte {
	whole := t
	whole.Transport = TCP
	var m dns.Msg
	if err := m.Unpack(a.AppendReply(nil, q, whole)); err != nil {
		return a.AppendReply(dst, q, t)
	}
	m.Answer = turnExchangers(m.Answer, t.Rotate)
	m.Compress = true
	limit := q.limit(t)
	if m.Len() > limit {
		m.Truncate(limit)
	}
	packed, err := m.Pack()
	if err != nil || len(packed) > limit {
		return a.AppendReply(dst, q, t)
	}
	return append(dst, packed...)
}

// turnExchangers returns rrs with the mail exchangers at the end, turned by n places.
func turnExchangers(rrs []dns.RR, n uint32) []dns.RR {
	var rest, mx []dns.RR
	for _, rr := range rrs {
		if rr.Header().Rrtype == dns.TypeMX {
			mx = append(mx, rr)
		} else {
			rest = append(rest, rr)
		}
	}
	if len(mx) == 0 {
		return rest
	}
	turn := int(n % uint32(len(mx)))
	return slices.Concat(rest, mx[turn:], mx[:turn])
}
