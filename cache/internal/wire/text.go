package wire

import "github.com/miekg/dns"

// TypeString returns the name of a type for people; TYPE65280 for one without (RFC 3597
// section 5).
func TypeString(t uint16) string { return dns.Type(t).String() }

// ClassString returns the name of a class for people.
func ClassString(c uint16) string { return dns.Class(c).String() }

// ReplyRcode returns the lower four bits of the response code of a packed reply, and
// those from OPT only where it is the last record and without options.
func ReplyRcode(reply []byte) Rcode {
	if len(reply) < headerLen {
		return NoError
	}
	r := Rcode(reply[3] & 15)
	if n := len(reply); n >= headerLen+11 && reply[11] == 1 && reply[10] == 0 &&
		reply[n-11] == 0 && reply[n-10] == 0 && reply[n-9] == TypeOPT && reply[n-2] == 0 && reply[n-1] == 0 {
		r |= Rcode(reply[n-6]) << 4
	}
	return r
}
