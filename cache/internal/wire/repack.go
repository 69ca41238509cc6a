package wire

import (
	"strings"

	"github.com/miekg/dns"
)

// repack packs a reply anew in the layout that walk calls plain: the question and all
// owners equal to it in lower case, names compressed, no OPT or TSIG, no DNSSEC records
// for a query without DO. ok is false when miekg/dns does not understand the message.
func repack(question []byte, variant Variant, msg []byte) (packed []byte, ok bool) {
	var m dns.Msg
	if err := m.Unpack(msg); err != nil || len(m.Question) != 1 {
		return nil, false
	}
	m.Question[0].Name = FormatName(question[:len(question)-4])
	strip := variant&DO == 0
	m.Answer = tidy(m.Answer, &m.Question[0], strip)
	m.Ns = tidy(m.Ns, &m.Question[0], strip)
	m.Extra = tidy(m.Extra, &m.Question[0], strip)
	m.Rcode &= 15 // the upper bits need OPT; the caller keeps them
	m.Compress = true
	packed, err := m.Pack()
	return packed, err == nil && len(packed) <= dns.MaxMsgSize
}

func tidy(rrs []dns.RR, q *dns.Question, strip bool) []dns.RR {
	kept := rrs[:0]
	for _, rr := range rrs {
		h := rr.Header()
		switch h.Rrtype {
		case dns.TypeOPT, dns.TypeTSIG:
			continue
		case dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3:
			if strip && q.Qtype != h.Rrtype && q.Qtype != dns.TypeANY {
				continue
			}
		}
		// The library compresses only names in the same letter case.
		if len(h.Name) == len(q.Name) && strings.EqualFold(h.Name, q.Name) {
			h.Name = q.Name
		}
		kept = append(kept, rr)
	}
	return kept
}
