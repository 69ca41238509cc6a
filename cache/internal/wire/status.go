package wire

import "encoding/binary"

// EDNSSize is the UDP size that this server offers in its own OPT records, to clients
// and to upstreams: what passes unfragmented nearly everywhere.
const EDNSSize = 1232

// EDE is an extended DNS error (RFC 8914) code; it goes only to clients that use EDNS.
type EDE uint16

// NoEDE stands for no extended error. Its value is the code for "other", which without
// text says nothing and so is never sent.
const NoEDE EDE = 0

const optionEDE = 15

// The extended errors that this server sends.
const (
	EDEStaleAnswer   EDE = 3
	EDECachedError   EDE = 13
	EDENotReady      EDE = 14
	EDEStaleNXDomain EDE = 19
	EDENotAuthority  EDE = 20
	EDENoReachable   EDE = 22
	EDENetworkError  EDE = 23
	EDESynthesized   EDE = 29
)

// extendedError returns the first extended error among well-formed options. Its text
// does not go on: it names what the upstream knows, not what we do.
func extendedError(options []byte) EDE {
	for len(options) > 0 {
		n := 4 + int(binary.BigEndian.Uint16(options[2:]))
		if binary.BigEndian.Uint16(options) == optionEDE && n >= 6 {
			return EDE(binary.BigEndian.Uint16(options[4:]))
		}
		options = options[n:]
	}
	return NoEDE
}

// AppendStatus appends a reply to q that has the question, where it could be read, and
// rcode, but no records.
func (q *Query) AppendStatus(dst []byte, rcode Rcode, ede EDE) []byte {
	var opt uint16
	if q.EDNS {
		opt = 1
	}
	if rcode > 15 && !q.EDNS {
		rcode = ServFail // there is no room for the upper bits without OPT
	}
	dst = q.appendHeader(dst, 0, rcode, 0, 0, opt)
	if q.EDNS {
		dst = q.appendOPT(dst, rcode, ede)
	}
	return dst
}

// AppendError appends to dst the reply to query that says rcode and has no records. It
// returns dst as it is when silence is the right answer, and lets a malformed query have
// its own rcode.
func AppendError(dst, query []byte, rcode Rcode) []byte {
	var q Query
	switch q.Read(query) {
	case Silent:
		return dst
	case Reject:
		rcode = q.Rcode
	}
	return q.AppendStatus(dst, rcode, NoEDE)
}

// appendHeader appends header and question. RD, CD and the opcode are the query's, RA
// is always set: recursion is what a forwarder is for. extra holds AA, TC and AD.
func (q *Query) appendHeader(dst []byte, extra uint16, rcode Rcode, an, ns, ar uint16) []byte {
	flags := flagQR | flagRA | extra | q.flags&(opcodeMask|flagRD|flagCD) | uint16(rcode&15)
	var qd byte
	if q.qlen > 0 {
		qd = 1
	}
	at := len(dst)
	dst = append(dst, q.msg[0], q.msg[1], byte(flags>>8), byte(flags), 0, qd, 0, 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(dst[at+6:], an)
	binary.BigEndian.PutUint16(dst[at+8:], ns)
	binary.BigEndian.PutUint16(dst[at+10:], ar)
	return append(dst, q.msg[headerLen:headerLen+q.qlen]...)
}

// optLen returns the octets of the OPT record that the reply to q gets.
func (q *Query) optLen(ede EDE) int {
	switch {
	case !q.EDNS:
		return 0
	case ede == NoEDE:
		return 11
	default:
		return 17
	}
}

// appendOPT appends our own OPT: version 0, DO copied (RFC 3225 section 3), no option
// of the client's or the upstream's.
func (q *Query) appendOPT(dst []byte, rcode Rcode, ede EDE) []byte {
	dst = append(dst, 0, 0, TypeOPT, EDNSSize>>8, EDNSSize&0xff, byte(rcode>>4), 0, byte(q.variant&DO)<<7, 0, 0, 0)
	if ede != NoEDE {
		dst[len(dst)-1] = 6
		dst = append(dst, 0, optionEDE, 0, 2, byte(ede>>8), byte(ede))
	}
	return dst
}
