package wire

import (
	"encoding/binary"
	"slices"
)

// owner is the way in which the owner name of a record is written.
type owner uint8

const (
	ownerPointer owner = iota // nothing but a pointer
	ownerRoot                 // a single zero octet
	ownerMixed                // labels and a pointer
	ownerSpelled              // labels up to the root
)

// record is the frame of one resource record.
type record struct {
	off   int
	rtype uint16
	class uint16
	owner owner
	ttl   uint32 // a value with the top bit set counts as 0 (RFC 2181 section 8)
	fixed int    // offset of the type field
	end   int
}

// readName is skipName for a name of a record. It notes where labels begin, and sets
// stray when the name points at something else: sound enough to be read, but its octets
// may be a TTL, and change. With a nil r it is skipName.
func (r *Reply) readName(msg []byte, off int) (next, length int, ok bool) {
	next, length, ok = skipName(msg, off)
	if !ok || r == nil {
		return next, length, ok
	}
	for ; off < next-1 && msg[off] < 0xc0; off += int(msg[off]) + 1 {
		r.starts = append(r.starts, uint16(off))
	}
	if msg[off] == 0 {
		r.starts = append(r.starts, uint16(off))
		return next, length, true
	}
	to := uint16(msg[off]&0x3f)<<8 | uint16(msg[off+1])
	if _, found := slices.BinarySearch(r.starts, to); !found {
		r.stray = true
	}
	return next, length, true
}

// readRecord reads the record at off and checks that its names and lengths are sound.
func (r *Reply) readRecord(msg []byte, off int) (rec record, ok bool) {
	next, length, ok := r.readName(msg, off)
	if !ok || next+10 > len(msg) {
		return rec, false
	}
	rec.off = off
	switch n := next - off; {
	case length == n && n == 1:
		rec.owner = ownerRoot
	case length == n:
		rec.owner = ownerSpelled
	case n == 2:
		rec.owner = ownerPointer
	default:
		rec.owner = ownerMixed
	}
	rec.fixed = next
	rec.rtype = binary.BigEndian.Uint16(msg[next:])
	rec.class = binary.BigEndian.Uint16(msg[next+2:])
	rec.ttl = binary.BigEndian.Uint32(msg[next+4:])
	if rec.ttl>>31 != 0 && rec.rtype != TypeOPT {
		rec.ttl = 0
	}
	rec.end = next + 10 + int(binary.BigEndian.Uint16(msg[next+8:]))
	if rec.end > len(msg) {
		return rec, false
	}
	return rec, r.rdataOK(msg, next+10, rec)
}

// records calls f for each record of msg, which has r's question, in order; section
// counts from 0 for the answer section. It returns false at the first malformed record.
func (r *Reply) records(msg []byte, f func(section int, rec record)) bool {
	off := headerLen + len(r.question)
	for section := range 3 {
		for range binary.BigEndian.Uint16(msg[6+2*section:]) {
			rec, ok := r.readRecord(msg, off)
			if !ok {
				return false
			}
			f(section, rec)
			off = rec.end
		}
	}
	return true
}

// rdataNames gives, for the types whose data may have compressed names in it (RFC 3597
// section 4), the octets before the names, the number of names and the octets behind.
func rdataNames(rtype uint16) (before, names, behind int) {
	switch rtype {
	case TypeNS, 3, 4, TypeCNAME, 7, 8, 9, TypePTR, TypeDNAME: // MD, MF, MB, MG, MR
		return 0, 1, 0
	case TypeSOA:
		return 0, 2, 20
	case 14, 17: // MINFO, RP
		return 0, 2, 0
	case TypeMX, 18, 21, 36: // AFSDB, RT, KX
		return 2, 1, 0
	case 26: // PX
		return 2, 2, 0
	case TypeSRV:
		return 6, 1, 0
	}
	return 0, 0, 0
}

// rdataOK checks the data of a record where it has a shape that clients rely on.
func (r *Reply) rdataOK(msg []byte, off int, rec record) bool {
	end := rec.end
	switch {
	case rec.rtype == TypeA && rec.class == ClassIN:
		return end-off == 4
	case rec.rtype == TypeAAAA && rec.class == ClassIN:
		return end-off == 16
	}
	before, names, behind := rdataNames(rec.rtype)
	if names == 0 {
		return true
	}
	off += before
	for range names {
		next, _, ok := r.readName(msg[:end], off)
		if !ok {
			return false
		}
		off = next
	}
	return off+behind == end
}
