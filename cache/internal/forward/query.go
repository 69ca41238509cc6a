package forward

import (
	"fmt"
	"strings"

	"github.com/miekg/dns"
)

const (
	headerLen  = 12
	maxMessage = 1<<16 - 1

	typeNS    = dns.TypeNS
	typeHINFO = dns.TypeHINFO
)

// query is a packed query and where its question ends.
type query struct {
	msg []byte
	end int
}

// readQuery finds the question of msg; false if there is not exactly one.
func readQuery(msg []byte) (query, bool) {
	if len(msg) < headerLen || msg[4] != 0 || msg[5] != 1 {
		return query{}, false
	}
	for off := headerLen; off < len(msg); off += 1 + int(msg[off]) {
		switch c := msg[off]; {
		case c == 0:
			end := off + 5
			return query{msg, end}, end <= len(msg)
		case c > 63:
			return query{}, false // no pointers in the first name of a message
		}
	}
	return query{}, false
}

func (q query) question() []byte { return q.msg[headerLen:q.end] }

func (q query) qtype() uint16 {
	return uint16(q.msg[q.end-4])<<8 | uint16(q.msg[q.end-3])
}

// answeredBy tells whether reply is a reply to q, its ID aside: a response with the same
// question in any letter case (RFC 5452 section 9.1, RFC 4343).
func (q query) answeredBy(reply []byte) bool {
	if len(reply) < q.end || reply[2]&0xf8 != 0x80 || reply[4] != 0 || reply[5] != 1 {
		return false
	}
	nameEnd := q.end - 4
	for i := headerLen; i < nameEnd; i++ {
		if a, b := q.msg[i], reply[i]; a != b && (a^b != 0x20 || a|0x20 < 'a' || a|0x20 > 'z') {
			return false
		}
	}
	return string(q.msg[nameEnd:q.end]) == string(reply[nameEnd:q.end])
}

// refusedBy tells whether reply is an error without a question, as some servers send
// for what they cannot or will not read, or TC and nothing else.
func (q query) refusedBy(reply []byte) bool {
	return len(reply) >= headerLen && reply[2]&0xf8 == 0x80 && (reply[3]&15 != 0 || isTruncated(reply)) &&
		string(reply[4:10]) == "\x00\x00\x00\x00\x00\x00"
}

// bare is the reply with q's question, the flags and rcode of reply, and no records.
func (q query) bare(reply []byte) []byte {
	out := make([]byte, q.end)
	copy(out, reply[:4])
	out[5] = 1
	copy(out[headerLen:], q.question())
	return out
}

// truncated is bare with TC set: what is left to say of a reply that cannot be read.
func (q query) truncated(reply []byte) []byte {
	out := q.bare(reply)
	out[2] |= 0x02
	out[3] &^= 0x0f
	return out
}

func isTruncated(reply []byte) bool { return reply[2]&0x02 != 0 }

// pack packs a question as a query.
func pack(name string, qtype uint16, recursive bool) ([]byte, error) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	m.RecursionDesired = recursive
	msg, err := m.Pack()
	if err != nil {
		return nil, fmt.Errorf("name %q: %w", name, err)
	}
	if _, ok := readQuery(msg); !ok || len(msg) > headerLen+255+4 {
		return nil, fmt.Errorf("name %q: too long", name)
	}
	return msg, nil
}

// healthQuery is the query of a health check.
func healthQuery(domain string, noRec bool) ([]byte, error) {
	return pack(domain, typeNS, !noRec)
}

// loopQuery is the query that shows a loop through zone when it comes back.
func loopQuery(label, zone string) ([]byte, error) {
	return pack(dns.Fqdn(label+"."+strings.TrimSuffix(zone, ".")), typeHINFO, true)
}
