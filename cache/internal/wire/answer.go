package wire

import (
	"bytes"
	"encoding/binary"
)

// Answer is an answer kept packed. It never changes and may be read by any number of
// goroutines. What depends on the client (ID, flags, letter case, TTLs, OPT, size) is
// not in it but decided by AppendReply.
type Answer struct {
	// packed is the folded question, the records as they stand behind it in a message,
	// and the offset of each record's TTL field in that message, two octets each.
	packed     []byte
	records    uint16 // octets of the records
	an, ns, ar uint16
	rcode      Rcode
	qlen       uint16
	variant    Variant
	flags      uint8
	ede        EDE // what the upstream said besides
}

const (
	answerAD = 1 << iota
	answerAA
	answerTC
)

// Size returns the octets that Answer needs.
func (r *Reply) Size() int { return r.end - headerLen + 2*len(r.offs) }

// Answer returns the reply as an answer, with every TTL raised to floor and then
// lowered to ceiling, in seconds. The answer keeps buf, which must have Size octets.
func (r *Reply) Answer(buf []byte, floor, ceiling uint32) Answer {
	at := headerLen + len(r.question)
	buf = append(buf[:0], r.question...)
	buf = append(buf, r.msg[at:r.end]...)
	for _, off := range r.offs {
		field := buf[int(off)-headerLen:]
		ttl := binary.BigEndian.Uint32(field)
		if ttl>>31 != 0 {
			ttl = 0
		}
		binary.BigEndian.PutUint32(field, min(max(ttl, floor), ceiling))
	}
	for _, off := range r.offs {
		buf = append(buf, byte(off>>8), byte(off))
	}
	a := Answer{
		packed:  buf,
		records: uint16(r.end - at),
		an:      r.an, ns: r.ns, ar: r.ar,
		rcode:   r.Rcode,
		qlen:    uint16(len(r.question)),
		variant: r.variant,
		ede:     r.ede,
	}
	if r.ad {
		a.flags |= answerAD
	}
	if r.Truncated {
		a.flags |= answerTC
	}
	if r.Authoritative {
		a.flags |= answerAA
	}
	return a
}

// StatusAnswer returns an answer to question without records. It keeps buf, which must
// have the octets of question.
func StatusAnswer(buf, question []byte, variant Variant, rcode Rcode) Answer {
	return Answer{packed: append(buf[:0], question...), qlen: uint16(len(question)), rcode: rcode, variant: variant}
}

// Answers tells whether a is the answer to a question as Query.Question returns it,
// with variant. All octets are compared: equal hashes prove nothing.
func (a *Answer) Answers(question []byte, variant Variant) bool {
	return a.variant == variant && bytes.Equal(a.packed[:a.qlen], question)
}

// Question returns the folded question. It must not be changed.
func (a *Answer) Question() []byte { return a.packed[:a.qlen] }

// Variant returns the DO and CD bits of the query that the answer was given to.
func (a *Answer) Variant() Variant { return a.variant }

// Rcode returns the response code.
func (a *Answer) Rcode() Rcode { return a.rcode }

// Size returns the octets of memory that the answer holds besides itself.
func (a *Answer) Size() int { return len(a.packed) }

// Terms are the terms of one reply.
type Terms struct {
	// Age is subtracted from every TTL, in seconds.
	Age uint32
	// Stale, if not zero, replaces every TTL, in seconds.
	Stale uint32
	// Limit is the size of a reply by UDP that the server allows, in octets; the
	// client's own limit applies besides. Zero means EDNSSize.
	Limit int
	// Transport tells whether Limit applies at all.
	Transport Transport
	// Rotate, if not zero, turns the addresses of the answer by that many places.
	Rotate uint32
	// EDE goes to clients that use EDNS. NoEDE means what the upstream said.
	EDE EDE
}

// AppendReply appends the reply to q that a gives. a must be an answer to q's question
// and variant. dst must not overlap q's packet.
func (a *Answer) AppendReply(dst []byte, q *Query, t Terms) []byte {
	base := len(dst)
	rcode := a.rcode
	if t.EDE == NoEDE {
		t.EDE = a.ede
	}
	if rcode > 15 && !q.EDNS {
		rcode = ServFail
	}
	var extra uint16
	if a.flags&answerAD != 0 && (q.flags&flagAD != 0 || q.variant&DO != 0) {
		extra |= flagAD // RFC 6840 sections 5.7 and 5.8
	}
	if a.flags&answerAA != 0 {
		extra |= flagAA
	}
	if a.flags&answerTC != 0 {
		extra |= flagTC
	}
	an, ns, ar := a.an, a.ns, a.ar
	size := int(a.records)
	opt := q.optLen(t.EDE)
	if room := q.limit(t) - headerLen - q.qlen - opt; size > room {
		var cut bool
		an, ns, ar, size, cut = a.fit(room)
		if cut {
			extra |= flagTC
		}
	}
	count := ar
	if opt > 0 {
		count++
	}
	dst = q.appendHeader(dst, extra, rcode, an, ns, count)
	dst = append(dst, a.packed[a.qlen:int(a.qlen)+size]...)
	a.setTTLs(dst[base:], int(an)+int(ns)+int(ar), t)
	if t.Rotate != 0 {
		rotate(dst[base:], a, int(an), t.Rotate)
	}
	if opt > 0 {
		dst = q.appendOPT(dst, rcode, t.EDE)
	}
	return dst
}

// limit returns the largest reply that may be sent to q's client.
func (q *Query) limit(t Terms) int {
	if t.Transport == TCP {
		return maxMessage
	}
	server := t.Limit
	if server == 0 {
		server = EDNSSize
	}
	return max(min(int(q.size), server), minUDPSize)
}

const maxMessage = 65535

// ttlOffset returns the offset in the message of record i's TTL field.
func (a *Answer) ttlOffset(i int) int {
	at := int(a.qlen) + int(a.records) + 2*i
	return int(a.packed[at])<<8 | int(a.packed[at+1])
}

// recordEnd returns the offset in the message of the end of record i.
func (a *Answer) recordEnd(i int) int {
	at := a.ttlOffset(i) - headerLen
	return headerLen + at + 6 + int(a.packed[at+4])<<8 + int(a.packed[at+5])
}

// recordStart returns the offset in the message of record i.
func (a *Answer) recordStart(i int) int {
	if i == 0 {
		return headerLen + int(a.qlen)
	}
	return a.recordEnd(i - 1)
}

// fit counts the records that go into room octets. cut is true when something is
// missing that the client must have: records of the additional section may be left out
// silently (RFC 2181 section 9).
func (a *Answer) fit(room int) (an, ns, ar uint16, size int, cut bool) {
	need := int(a.an) + int(a.ns)
	n := 0
	start := headerLen + int(a.qlen)
	for n < need+int(a.ar) {
		end := a.recordEnd(n) - start
		if end > room {
			break
		}
		size = end
		n++
	}
	an = uint16(min(n, int(a.an)))
	ns = uint16(min(n, need)) - an
	ar = uint16(n) - an - ns
	return an, ns, ar, size, n < need
}

func (a *Answer) setTTLs(msg []byte, n int, t Terms) {
	if t.Age == 0 && t.Stale == 0 {
		return
	}
	table := a.packed[int(a.qlen)+int(a.records):]
	for i := range n {
		ageField(msg[int(table[2*i])<<8|int(table[2*i+1]):], t)
	}
}

// ageField sets the TTL at the beginning of field.
func ageField(field []byte, t Terms) {
	ttl := binary.BigEndian.Uint32(field)
	switch {
	case t.Stale != 0:
		ttl = t.Stale
	case ttl > t.Age:
		ttl -= t.Age
	default:
		ttl = 0
	}
	binary.BigEndian.PutUint32(field, ttl)
}
