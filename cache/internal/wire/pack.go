package wire

import (
	"bytes"
	"encoding/binary"
)

// packer writes a message anew with names compressed: owners, and the names in data
// where every reader has always had to expect a pointer. Other data goes through octet
// by octet, whether its type is known or not (RFC 3597 section 3). Only a name in it that
// the upstream has compressed is written out, since its pointer would point elsewhere.
type packer struct {
	out   []byte
	base  int               // where the message begins in out
	names map[string]uint16 // a name written out, in its letter case, to its offset
	qlen  int               // octets of the question's name
	name  [maxNameLen]byte
}

// newPacker begins a message in dst with the 12 octets of header, whose counts of records
// do not matter, and a question.
func newPacker(dst, header, question []byte) *packer {
	p := &packer{base: len(dst), names: make(map[string]uint16), qlen: len(question) - 4}
	p.out = append(dst, header[:6]...)
	p.out = append(p.out, 0, 0, 0, 0, 0, 0)
	p.spell(question[:p.qlen], true)
	p.out = append(p.out, question[p.qlen:]...)
	return p
}

// size returns the octets of the message so far.
func (p *packer) size() int { return len(p.out) - p.base }

// count adds one to the number of records in a section.
func (p *packer) count(section int) {
	field := p.out[p.base+6+2*section:]
	binary.BigEndian.PutUint16(field, binary.BigEndian.Uint16(field)+1)
}

// add appends the record rec of msg to a section under the name owner. value, unless nil,
// replaces the names in its data that a rewrite may change.
func (p *packer) add(section int, msg []byte, rec record, owner []byte, value func([]byte) []byte) {
	if question := p.out[p.base+headerLen:][:p.qlen]; len(owner) > 1 && len(owner) == p.qlen && equalFold(owner, question) {
		p.out = append(p.out, 0xc0, headerLen) // whatever its letter case
	} else {
		p.spell(owner, true)
	}
	p.out = append(p.out, msg[rec.fixed:rec.fixed+10]...)
	at := len(p.out)
	p.data(msg, rec, value)
	binary.BigEndian.PutUint16(p.out[at-2:], uint16(len(p.out)-at))
	p.count(section)
}

func (p *packer) data(msg []byte, rec record, value func([]byte) []byte) {
	off := rec.fixed + 10
	before, names, _ := rdataNames(rec.rtype)
	strict := names > 0
	if !strict {
		before, names = looseName(msg, rec)
	}
	if !renamed(rec.rtype) {
		value = nil
	}
	p.out = append(p.out, msg[off:off+before]...)
	off += before
	for range names {
		next, _, _ := skipName(msg[:rec.end], off)
		name := spelled(p.name[:0], msg, off)
		if value != nil {
			name = value(name)
		}
		if strict {
			p.spell(name, squeezed(rec.rtype))
		} else {
			p.out = append(p.out, name...)
		}
		off = next
	}
	p.out = append(p.out, msg[off:rec.end]...)
}

// spell appends a name, with a pointer for as much of its end as was written before if
// squeeze allows that.
func (p *packer) spell(name []byte, squeeze bool) {
	for off := 0; name[off] != 0; off += int(name[off]) + 1 {
		if to, ok := p.names[string(name[off:])]; ok {
			if squeeze {
				p.out = append(p.out, 0xc0|byte(to>>8), byte(to))
				return
			}
		} else if at := p.size(); at < 1<<14 {
			p.names[string(name[off:])] = uint16(at)
		}
		p.out = append(p.out, name[off:off+1+int(name[off])]...)
	}
	p.out = append(p.out, 0)
}

// squeezed tells whether the names in the data of a type are compressed: of those for
// which RFC 3597 section 4 allows it, the ones that are in use.
func squeezed(rtype uint16) bool {
	switch rtype {
	case TypeNS, TypeCNAME, TypeSOA, TypePTR, TypeMX:
		return true
	}
	return false
}

// looseName finds the name in data of the types where readers take a compressed one
// against the rules or by older ones (RFC 3597 section 4): the octets before it, and 1.
// Data that only looks like a record of its type is left alone.
func looseName(msg []byte, rec record) (before, names int) {
	off := rec.fixed + 10
	data := msg[off:rec.end]
	switch rec.rtype {
	case typeSIG, TypeRRSIG:
		before = 18
	case typeNXT, TypeNSEC:
	case TypeSVCB, TypeHTTPS, typeLP:
		before = 2
	case TypeNAPTR:
		before = 4
		for range 3 { // flags, services, regexp
			if before >= len(data) {
				return 0, 0
			}
			before += 1 + int(data[before])
		}
	case TypeA:
		if rec.class != ClassCH {
			return 0, 0
		}
	default:
		return 0, 0
	}
	if _, _, ok := skipName(msg[:rec.end], off+before); !ok {
		return 0, 0
	}
	return before, 1
}

// equalFold tells whether two names are the same but for letter case.
func equalFold(a, b []byte) bool {
	var la, lb [maxNameLen]byte
	fold(la[:], a)
	fold(lb[:], b)
	return bytes.Equal(la[:len(a)], lb[:len(b)])
}
