package wire

import (
	"fmt"

	"github.com/miekg/dns"
)

// Rename returns reply, an answer to the question from, as an answer to the question
// to, with every owner name passed through owner and every name in the data of records
// through value.
func Rename(reply, from, to []byte, owner, value func(string) string) ([]byte, error) {
	if !answers(from, reply) {
		return nil, ErrMismatch
	}
	var m dns.Msg
	if err := m.Unpack(reply); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	m.Question[0].Name = FormatName(to[:len(to)-4])
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			rr.Header().Name = owner(rr.Header().Name)
			for _, name := range namesIn(rr) {
				*name = value(*name)
			}
		}
	}
	m.Compress = true
	packed, err := m.Pack()
	if err != nil {
		return nil, fmt.Errorf("packing renamed reply: %w", err)
	}
	return packed, nil
}

// namesIn returns the names in the data of a record that a rewrite may change.
func namesIn(rr dns.RR) []*string {
	switch rr := rr.(type) {
	case *dns.CNAME:
		return []*string{&rr.Target}
	case *dns.DNAME:
		return []*string{&rr.Target}
	case *dns.SOA:
		return []*string{&rr.Ns, &rr.Mbox}
	case *dns.SRV:
		return []*string{&rr.Target}
	case *dns.MX:
		return []*string{&rr.Mx}
	case *dns.NAPTR:
		return []*string{&rr.Replacement}
	case *dns.NS:
		return []*string{&rr.Ns}
	case *dns.PTR:
		return []*string{&rr.Ptr}
	}
	return nil
}
