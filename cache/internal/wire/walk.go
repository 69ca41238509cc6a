package wire

import "encoding/binary"

type layout uint8

const (
	layoutBroken layout = iota
	layoutPlain         // may be kept as it is
	layoutLoose         // may be kept, but would gain by being packed anew
	layoutOdd           // must be packed anew
)

// walk checks msg, whose question is known to be r.question, record by record and
// notes what is needed to keep it.
func (r *Reply) walk(msg []byte) layout {
	r.msg, r.offs = msg, r.offsBuf[:0]
	r.HasOPT, r.HasSOA, r.MinTTL, r.answered, r.ede = false, false, NoTTL, false, NoEDE
	flags := binary.BigEndian.Uint16(msg[2:])
	r.ad, r.Authoritative = flags&flagAD != 0, flags&flagAA != 0
	r.Rcode = Rcode(flags & 15)
	r.an, r.ns = binary.BigEndian.Uint16(msg[6:]), binary.BigEndian.Uint16(msg[8:])
	answer := int(r.an)
	authority := answer + int(r.ns)
	total := authority + int(binary.BigEndian.Uint16(msg[10:]))

	off := headerLen + len(r.question)
	r.end = off
	odd, loose := false, false
	r.stray, r.starts = false, r.startsBuf[:0]
	r.readName(msg, headerLen)
	for i := range total {
		rec, ok := r.readRecord(msg, off)
		if !ok {
			return layoutBroken
		}
		if rec.rtype == TypeOPT {
			// One that is where it should not be, or once more, is left out like a right
			// one: what counts is the answer.
			if i >= authority && rec.owner == ownerRoot && !r.HasOPT {
				r.Rcode |= Rcode(rec.ttl>>24) << 4
				if options := msg[rec.fixed+10 : rec.end]; optionsOK(options) {
					r.ede = extendedError(options)
				}
			}
			r.HasOPT = true
			odd = odd || i != total-1 || i < authority
			off = rec.end
			continue
		}
		switch {
		case i < answer:
			r.answered = r.answered || rec.rtype == r.qtype() || r.qtype() == TypeANY
		case i < authority && rec.rtype == TypeSOA && !r.HasSOA:
			r.HasSOA = true
			r.SOATTL = min(rec.ttl, binary.BigEndian.Uint32(msg[rec.end-4:]))
		}
		odd = odd || r.unwanted(rec.rtype)
		loose = loose || r.spelledOut(rec, off)
		r.MinTTL = min(r.MinTTL, rec.ttl)
		r.offs = append(r.offs, uint16(rec.fixed+4))
		off = rec.end
		r.end = off
	}
	r.ar = uint16(len(r.offs) - authority)
	switch {
	case odd || r.stray:
		return layoutOdd
	case loose:
		return layoutLoose
	}
	return layoutPlain
}

func (r *Reply) qtype() uint16 { return binary.BigEndian.Uint16(r.question[len(r.question)-4:]) }

// unwanted tells whether a record must not go on: DNSSEC's that nobody asked for (RFC
// 4035 section 3.2.1), or one that is about the upstream's message and not ours.
func (r *Reply) unwanted(rtype uint16) bool {
	switch rtype {
	case TypeOPT, typeTSIG:
		return true
	case TypeRRSIG, TypeNSEC, TypeNSEC3:
		return r.variant&DO == 0 && r.qtype() != rtype && r.qtype() != TypeANY
	}
	return false
}

// classify sets Kind.
func (r *Reply) classify() {
	switch {
	case r.Rcode == NXDomain:
		r.Kind = NameError
	case r.Rcode != NoError:
		r.Kind = Failure
	case r.answered:
		r.Kind = Positive
	default:
		r.Kind = NoData
	}
}

// spelledOut tells whether the owner of a record is written out where a pointer would
// do. That costs memory and packet space, and where it is the name of the question it
// would come back in the letter case of the upstream instead of the client's.
func (r *Reply) spelledOut(rec record, off int) bool {
	switch rec.owner {
	case ownerSpelled:
		return true
	case ownerMixed:
		// A first part of its own and a pointer: fine unless it makes the whole name of
		// the question.
		var buf [maxNameLen]byte
		return string(expand(buf[:0], r.msg, off)) == string(r.question[:len(r.question)-4])
	}
	return false
}
