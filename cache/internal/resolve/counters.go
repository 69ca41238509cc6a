package resolve

import (
	"sync/atomic"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// source says where a reply comes from.
type source uint8

const (
	bySelf source = iota // refusals and failures of our own
	byForward
	byLocal
	hitSuccess
	hitDenial
	staleSuccess
	staleDenial

	hits = 4 // of them

	// The same again, from Resolve: a hit that waited for the query log, for another's
	// question or for the verification of a stale answer. Those are timed.
	lateHits = hitSuccess + hits

	sources = lateHits + hits
)

// late returns s as a reply by Resolve counts.
func (s source) late() source {
	if s >= hitSuccess && s < lateHits {
		return s + hits
	}
	return s
}

// prompt is the reverse of late.
func (s source) prompt() source {
	if s >= lateHits {
		return s - hits
	}
	return s
}

// label returns the value of the plugin label of the responses metric.
func (s source) label() string {
	switch s.prompt() {
	case hitSuccess, hitDenial, staleSuccess, staleDenial:
		return "cache"
	case byForward:
		return "forward"
	case byLocal:
		return "local"
	default:
		return ""
	}
}

const (
	protos     = 2  // UDP, TCP
	families   = 2  // IPv4, IPv6
	otherType  = 16 // the slot of types without one of their own
	rcodeSlots = 24
	sizeSlots  = 15
	timeSlots  = 17

	firstTimeLimit = 250 * time.Microsecond // and doubled from bucket to bucket, as CoreDNS does
	laneCount      = 8
)

// typeSlot returns where a type is counted; the types are those that CoreDNS counts.
func typeSlot(t uint16) int {
	switch t {
	case wire.TypeA:
		return 0
	case wire.TypeAAAA:
		return 1
	case wire.TypePTR:
		return 2
	case wire.TypeSRV:
		return 3
	case wire.TypeTXT:
		return 4
	case wire.TypeCNAME:
		return 5
	case wire.TypeMX:
		return 6
	case wire.TypeNS:
		return 7
	case wire.TypeSOA:
		return 8
	case wire.TypeDS:
		return 9
	case wire.TypeDNSKEY:
		return 10
	case wire.TypeRRSIG:
		return 11
	case wire.TypeHTTPS:
		return 12
	case wire.TypeSVCB:
		return 13
	case wire.TypeNAPTR:
		return 14
	case wire.TypeANY:
		return 15
	}
	return otherType
}

// typeLabel is the reverse of typeSlot.
func typeLabel(slot int) string {
	if slot == otherType {
		return "other"
	}
	for _, t := range []uint16{wire.TypeA, wire.TypeAAAA, wire.TypePTR, wire.TypeSRV, wire.TypeTXT, wire.TypeCNAME,
		wire.TypeMX, wire.TypeNS, wire.TypeSOA, wire.TypeDS, wire.TypeDNSKEY, wire.TypeRRSIG, wire.TypeHTTPS,
		wire.TypeSVCB, wire.TypeNAPTR, wire.TypeANY} {
		if typeSlot(t) == slot {
			return wire.TypeString(t)
		}
	}
	return "other"
}

// sizeLimits are the upper bounds of the buckets for packet sizes, as CoreDNS has them.
func sizeLimits() [sizeSlots - 1]int {
	return [...]int{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16000, 32000, 48000, 64000}
}

// sizeSlot returns the bucket for a packet of n octets.
func sizeSlot(n int) int {
	for i, limit := range sizeLimits() {
		if n <= limit {
			return i
		}
	}
	return sizeSlots - 1
}

// counters count what one zone does on one server. They are kept in lanes, one for each
// worker of the server as long as there are no more than laneCount, so that a count is
// an uncontended add.
type counters struct {
	lanes [laneCount]atomic.Pointer[lane]

	durations [timeSlots]atomic.Uint64 // of replies by Resolve
	took      atomic.Int64
	cached    atomic.Bool // the zone has a cache
}

// lane is what one worker counts.
type lane struct {
	requests  [protos][families][otherType + 1]atomic.Uint64
	responses [sources][rcodeSlots]atomic.Uint64
	asked     [protos]sizes
	replied   [protos]sizes
	do        atomic.Uint64
}

// sizes counts packet sizes: each small size by itself, so that one add yields both the
// bucket and the sum of a histogram; large ones, which are rare, with two.
type sizes struct {
	small   []atomic.Uint64 // by size
	buckets [sizeSlots]atomic.Uint64
	sum     atomic.Uint64
}

// What goes by UDP as a rule; by TCP there is no rule.
const (
	smallQuery = 320
	smallReply = wire.EDNSSize + 1
)

func newLane() *lane {
	l := new(lane)
	l.asked[wire.UDP].small = make([]atomic.Uint64, smallQuery)
	l.replied[wire.UDP].small = make([]atomic.Uint64, smallReply)
	return l
}

func (s *sizes) observe(n int) {
	if n < len(s.small) {
		s.small[n].Add(1)
		return
	}
	s.buckets[sizeSlot(n)].Add(1)
	s.sum.Add(uint64(n))
}

// count counts one reply. A nil receiver counts nothing.
func (c *counters) count(q *wire.Query, reply []byte, from wire.Origin, how source) {
	if c == nil {
		return
	}
	l := c.lane(from.Lane)
	proto, family := 0, 0
	if from.Transport == wire.TCP {
		proto = 1
	}
	if from.Client.Addr().Is6() && !from.Client.Addr().Is4In6() {
		family = 1
	}
	l.requests[proto][family][typeSlot(q.Type)].Add(1)
	l.responses[how][min(wire.ReplyRcode(reply), rcodeSlots-1)].Add(1)
	l.asked[proto].observe(len(q.Packet()))
	l.replied[proto].observe(len(reply))
	if q.DO() {
		l.do.Add(1)
	}
}

func (c *counters) lane(n uint8) *lane {
	p := &c.lanes[n%laneCount]
	if l := p.Load(); l != nil {
		return l
	}
	p.CompareAndSwap(nil, newLane())
	return p.Load()
}

// now returns the time for observe; the zero time if nothing is counted.
func (c *counters) now() time.Time {
	if c == nil {
		return time.Time{}
	}
	return time.Now()
}

// observe notes how long a reply by Resolve took. Those by Hit are not timed: they take
// less than the lowest bucket holds, and timing them would cost a tenth of what they take.
func (c *counters) observe(start time.Time) {
	if c == nil {
		return
	}
	d := time.Since(start)
	i := 0
	for limit := firstTimeLimit; i < timeSlots-1 && d > limit; limit *= 2 {
		i++
	}
	c.durations[i].Add(1)
	c.took.Add(int64(d))
}

// zoneCounts count what does not hang on a reply.
type zoneCounts struct {
	prefetches, drops, cuts, busy, panics atomic.Uint64
	zone                                  atomic.Pointer[Zone] // the one that counts now; nil: served no more
}
