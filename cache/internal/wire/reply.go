package wire

import (
	"bytes"
	"encoding/binary"
)

// Kind is what a reply means to a cache (RFC 2308 section 2).
type Kind uint8

const (
	// Positive: the question is answered.
	Positive Kind = iota
	// NoData: the name exists, the type does not; also an alias that leads to nothing
	// and a referral.
	NoData
	// NameError: the name does not exist.
	NameError
	// Failure: any other response code.
	Failure
)

// Reply is a reply from upstream that has been checked and laid out in the one way that
// [Answer] keeps. The zero value is ready; a Reply may be used again and again.
type Reply struct {
	Kind Kind
	// Rcode has the bits from OPT.
	Rcode Rcode
	// Truncated: the upstream could not say all (TC); such a reply is never kept.
	Truncated bool
	// HasOPT tells whether the upstream speaks EDNS.
	HasOPT bool
	// Authoritative is the AA bit; answers made on the spot have it.
	Authoritative bool
	// MinTTL is the lowest TTL of all records, in seconds; NoTTL without records.
	MinTTL uint32
	// HasSOA tells whether the authority section has a SOA record, and SOATTL is then
	// the lower of its TTL and its MINIMUM field (RFC 2308 section 5).
	HasSOA bool
	SOATTL uint32

	question []byte
	variant  Variant
	msg      []byte
	end      int // of the records that are kept
	an, ns   uint16
	ar       uint16 // without OPT
	ad       bool
	answered bool
	ede      EDE
	offs     []uint16 // offset of each record's TTL in msg
	offsBuf  [32]uint16

	// What a walk needs to know about names: where labels begin, in order, and whether a
	// name points anywhere else.
	starts    []uint16
	startsBuf [64]uint16
	stray     bool
}

// Unsigned tells whether the reply had no room for the DNSSEC records that were asked for:
// it came from upstream without EDNS.
func (r *Reply) Unsigned() bool { return r.variant&DO != 0 && !r.HasOPT && !r.Authoritative }

// NoTTL is MinTTL of a reply without records.
const NoTTL = 1<<32 - 1

// Read checks msg, the reply to question asked with variant. It keeps both slices.
//
// Most replies only need to be walked. One that is laid out in another way (OPT not at
// the end, DNSSEC records that were not asked for, names written out) is packed anew.
// The error is ErrMismatch or ErrMalformed.
func (r *Reply) Read(question []byte, variant Variant, msg []byte) error {
	if !answers(question, msg) {
		return ErrMismatch
	}
	r.question, r.variant = question, variant
	r.Truncated = binary.BigEndian.Uint16(msg[2:])&flagTC != 0
	found := r.walk(msg)
	if found == layoutLoose || found == layoutOdd {
		// What was in the OPT record does not come back.
		rcode, opt, ede := r.Rcode, r.HasOPT, r.ede
		if packed, ok := r.repack(msg); ok {
			if r.walk(packed) == layoutBroken {
				return ErrMalformed
			}
			r.Rcode, r.HasOPT, r.ede = rcode, opt, ede
		} else if found == layoutOdd {
			found = layoutBroken
		}
	}
	if found != layoutBroken {
		r.classify()
		return nil
	}
	if r.Truncated {
		// Cut in the middle of a record (RFC 2181 section 9): what is left is that the
		// answer is too large.
		r.msg, r.end, r.an, r.ns, r.ar = msg, headerLen+len(question), 0, 0, 0
		r.offs, r.Kind, r.HasSOA, r.MinTTL = r.offsBuf[:0], NoData, false, NoTTL
		return nil
	}
	return ErrMalformed
}

// answers tells whether reply is a reply to question.
func answers(question, reply []byte) bool {
	n := headerLen + len(question)
	if len(reply) < n || reply[2]&0xf8 != 0x80 || reply[4] != 0 || reply[5] != 1 {
		return false
	}
	name := len(question) - 4
	var low [maxNameLen]byte
	fold(low[:], reply[headerLen:headerLen+name])
	return bytes.Equal(low[:name], question[:name]) &&
		bytes.Equal(reply[headerLen+name:n], question[name:])
}
