package local

import (
	"net"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// WhoAmI tells a client its own address, port and transport, in the additional section.
// It answers everything.
type WhoAmI struct{}

// Answer implements the resolver's interface for local answers. No two clients get the
// same.
func (WhoAmI) Answer(query []byte, from wire.Origin) (out []byte, keep bool) {
	q, ok := read(query)
	if !ok {
		return nil, false
	}
	m := reply(q)
	name, class := q.Question[0].Name, q.Question[0].Qclass
	addr := from.Client.Addr().Unmap()
	switch {
	case addr.Is4():
		m.Extra = append(m.Extra, &dns.A{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: class}, A: net.IP(addr.AsSlice()),
		})
	case addr.Is6():
		m.Extra = append(m.Extra, &dns.AAAA{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeAAAA, Class: class}, AAAA: net.IP(addr.AsSlice()),
		})
	}
	owner := "_" + from.Transport.String() + "." + name
	if name == "." {
		owner = "_" + from.Transport.String() + "."
	}
	m.Extra = append(m.Extra, &dns.SRV{
		Hdr:  dns.RR_Header{Name: owner, Rrtype: dns.TypeSRV, Class: class},
		Port: from.Client.Port(), Target: ".",
	})
	return pack(q, m), false
}
