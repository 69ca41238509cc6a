package wire

import (
	"net/netip"
	"time"
)

// Transport is the way a query reached the server.
type Transport uint8

// The transports of RFC 1035 section 4.2.
const (
	UDP Transport = iota
	TCP
)

// String returns the name used in logs and metric labels.
func (t Transport) String() string {
	if t == TCP {
		return "tcp"
	}
	return "udp"
}

// Origin says where a query came from.
type Origin struct {
	// Client is the address the reply goes to.
	Client netip.AddrPort
	// Transport bounds the size of the reply.
	Transport Transport
	// Lane tells which worker of the server read the query. Counters are kept by lane,
	// so that cores do not fight over a cache line. Any value is right, also always zero.
	Lane uint8
	// Received is when the packet was read, with the monotonic clock. Zero means just now.
	// A server that reads packets in batches looks at the clock once for all.
	Received time.Time
}
