package wire

import (
	"fmt"

	"github.com/miekg/dns"
)

// Rcode is a response code of 12 bits (RFC 6891 section 6.1.3).
type Rcode uint16

// The response codes that this server sends of its own.
const (
	NoError  Rcode = dns.RcodeSuccess
	FormErr  Rcode = dns.RcodeFormatError
	ServFail Rcode = dns.RcodeServerFailure
	NXDomain Rcode = dns.RcodeNameError
	NotImp   Rcode = dns.RcodeNotImplemented
	Refused  Rcode = dns.RcodeRefused
	BadVers  Rcode = dns.RcodeBadVers
)

// String returns the name of RFC 6895, or "RCODE" and the number.
func (r Rcode) String() string {
	if r == BadVers {
		return "BADVERS" // the library says BADSIG, which shares the number
	}
	if s, ok := dns.RcodeToString[int(r)]; ok {
		return s
	}
	return fmt.Sprintf("RCODE%d", uint16(r))
}
