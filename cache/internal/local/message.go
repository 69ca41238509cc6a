package local

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// read unpacks a query; ok is false if it is none.
func read(query []byte) (m *dns.Msg, ok bool) {
	m = new(dns.Msg)
	if err := m.Unpack(query); err != nil || len(m.Question) != 1 {
		return nil, false
	}
	return m, true
}

// reply starts a reply to query. The answers made here are nobody else's, hence AA.
func reply(query *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(query)
	m.Authoritative = true
	m.Compress = true
	return m
}

// pack packs a reply; one that cannot be packed becomes SERVFAIL.
func pack(query, m *dns.Msg) []byte {
	if b, err := m.Pack(); err == nil && len(b) <= dns.MaxMsgSize {
		return b
	}
	b, err := new(dns.Msg).SetRcode(query, dns.RcodeServerFailure).Pack()
	if err != nil {
		return nil
	}
	return b
}

// zoneOf returns the longest of zones that name lies in. All are lower case and end in a
// dot.
func zoneOf(name string, zones []string) (zone string, ok bool) {
	for _, z := range zones {
		if dns.IsSubDomain(z, name) && (!ok || len(z) > len(zone)) {
			zone, ok = z, true
		}
	}
	return zone, ok
}

// canonical returns names in lower case with a final dot.
func canonical(names []string) []string {
	out := slices.Clone(names)
	for i, n := range out {
		out[i] = strings.ToLower(dns.Fqdn(n))
	}
	return out
}
