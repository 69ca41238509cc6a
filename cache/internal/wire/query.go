package wire

import "encoding/binary"

// Bits of the second header word.
const (
	flagQR = 1 << 15
	flagAA = 1 << 10
	flagTC = 1 << 9
	flagRD = 1 << 8
	flagRA = 1 << 7
	flagAD = 1 << 5
	flagCD = 1 << 4

	opcodeMask = 0xf << 11
)

// The types and classes that are treated in a special way; any other number passes
// through as it is (RFC 3597).
const (
	TypeA      = 1
	TypeNS     = 2
	TypeCNAME  = 5
	TypeSOA    = 6
	TypePTR    = 12
	TypeMX     = 15
	TypeTXT    = 16
	TypeAAAA   = 28
	TypeSRV    = 33
	TypeNAPTR  = 35
	TypeDNAME  = 39
	TypeOPT    = 41
	TypeDS     = 43
	TypeRRSIG  = 46
	TypeNSEC   = 47
	TypeDNSKEY = 48
	TypeNSEC3  = 50
	TypeSVCB   = 64
	TypeHTTPS  = 65
	TypeANY    = 255

	typeSIG    = 24
	typeNXT    = 30
	typeLP     = 107
	typeNXNAME = 128
	typeTKEY   = 249
	typeTSIG   = 250
	typeIXFR   = 251
	typeAXFR   = 252
	typeMAILB  = 253
	typeMAILA  = 254

	ClassIN = 1
	ClassCH = 3

	classNone = 254
	classAny  = 255
)

// Variant is what besides the question tells answers apart: the DO and CD bits of the
// query (RFC 4035 sections 3.2.1 and 3.2.2).
type Variant uint8

// The bits of a Variant.
const (
	DO Variant = 1 << iota
	CD
)

// Verdict says what is to be done with a packet.
type Verdict uint8

const (
	// OK: a question to be answered.
	OK Verdict = iota
	// Silent: no reply whatever (RFC 1035 section 4.1.1: a reply is not answered).
	Silent
	// Reject: reply with Query.Rcode and nothing else.
	Reject
)

// minUDPSize is the reply size that every client takes over UDP (RFC 1035 section
// 4.2.1); a smaller one in OPT counts as this (RFC 6891 section 6.2.3).
const minUDPSize = 512

// Query is a query read in place. It refers to the packet, which must not change
// meanwhile. The zero value is ready; a Query may be used again and again.
type Query struct {
	// Rcode is the answer to a query that Read rejected.
	Rcode Rcode
	// Type and Class are those of the question.
	Type, Class uint16
	// EDNS tells whether there was an OPT record.
	EDNS bool

	msg     []byte
	flags   uint16
	size    uint16 // of replies by UDP as the client offers, 512 at least
	qlen    int    // octets of the question; 0 when it could not be read
	variant Variant
	folded  [maxNameLen + 4]byte // the question with its name folded
}

// Question returns the question section with the name folded: name, type, class. It is
// valid until the next Read.
func (q *Query) Question() []byte { return q.folded[:q.qlen] }

// Name returns the folded name of the question. It is valid until the next Read.
func (q *Query) Name() []byte { return q.folded[:q.qlen-4] }

// Variant returns the DO and CD bits.
func (q *Query) Variant() Variant { return q.variant }

// DO tells whether the client wants DNSSEC records (RFC 3225).
func (q *Query) DO() bool { return q.variant&DO != 0 }

// Packet returns the packet that was read.
func (q *Query) Packet() []byte { return q.msg }

// Read reads msg. After OK all fields are valid; after Reject at least Rcode, and the
// question where it could be read.
func (q *Query) Read(msg []byte) Verdict {
	q.msg, q.qlen, q.variant, q.size, q.EDNS = msg, 0, 0, minUDPSize, false
	if len(msg) < headerLen {
		return Silent
	}
	q.flags = binary.BigEndian.Uint16(msg[2:])
	if q.flags&flagQR != 0 {
		return Silent
	}
	questionOK := binary.BigEndian.Uint16(msg[4:]) == 1 && q.readQuestion()
	if q.flags&opcodeMask != 0 || !questionOK {
		q.readOPT()
		if q.flags&opcodeMask != 0 {
			return q.reject(NotImp)
		}
		q.qlen = 0
		return q.reject(FormErr)
	}
	if q.flags&flagCD != 0 {
		q.variant |= CD
	}
	if binary.BigEndian.Uint16(msg[6:])|binary.BigEndian.Uint16(msg[8:])|binary.BigEndian.Uint16(msg[10:]) != 0 {
		if rcode := q.readRecords(headerLen + q.qlen); rcode != NoError {
			return q.reject(rcode)
		}
	}
	if rcode := q.judge(); rcode != NoError {
		return q.reject(rcode)
	}
	return OK
}

func (q *Query) reject(r Rcode) Verdict {
	q.Rcode = r
	return Reject
}

// readQuestion checks and folds the question. A pointer has nothing to point at here.
func (q *Query) readQuestion() bool {
	msg := q.msg
	off := headerLen
	for {
		if off >= len(msg) || off-headerLen >= maxNameLen {
			return false
		}
		c := int(msg[off])
		off += c + 1
		if c == 0 {
			break
		}
		if c > 63 {
			return false
		}
	}
	if off+4 > len(msg) {
		return false
	}
	q.qlen = off + 4 - headerLen
	n := off - headerLen
	fold(q.folded[:], msg[headerLen:off])
	copy(q.folded[n:n+4], msg[off:off+4])
	q.Type = binary.BigEndian.Uint16(msg[off:])
	q.Class = binary.BigEndian.Uint16(msg[off+2:])
	return true
}

// judge refuses the questions that a cache must not pass on.
func (q *Query) judge() Rcode {
	switch q.Type {
	case typeAXFR, typeIXFR:
		return Refused // RFC 5936 section 2.2.1: a zone is not ours to hand out
	case TypeOPT, typeNXNAME:
		return FormErr // never a question: RFC 6891 section 6.1.1, RFC 9824 section 3.6
	case typeTKEY, typeTSIG, typeMAILB, typeMAILA:
		return NotImp
	}
	switch q.Class {
	case 0, classNone:
		return FormErr
	case classAny:
		return Refused
	}
	return NoError
}
