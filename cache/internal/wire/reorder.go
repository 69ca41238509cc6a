package wire

import (
	"encoding/binary"
	"slices"
)

// AppendReordered is AppendReply for answers with records that Terms.Rotate leaves in
// their places there: mail exchangers, whose names need packing anew.
func (a *Answer) AppendReordered(dst []byte, q *Query, t Terms) []byte {
	whole := t
	whole.Transport, whole.Rotate = TCP, 0
	msg := a.AppendReply(nil, q, whole)
	r := Reply{question: slices.Clone(q.Question())} // or every query would be put on the heap, for this one's sake
	var sections [3][]record
	var exchangers []record
	opt := len(msg)
	if !r.records(msg, func(section int, rec record) {
		switch {
		case rec.rtype == TypeOPT:
			opt = rec.off
		case section == 0 && rec.rtype == TypeMX:
			exchangers = append(exchangers, rec)
		default:
			sections[section] = append(sections[section], rec)
		}
	}) || len(exchangers) == 0 {
		return a.AppendReply(dst, q, t)
	}
	turn := int(t.Rotate % uint32(len(exchangers)))
	sections[0] = slices.Concat(sections[0], exchangers[turn:], exchangers[:turn])

	p := newPacker(dst, msg, msg[headerLen:headerLen+len(r.question)])
	room := q.limit(t) - (len(msg) - opt)
	cut := p.fill(msg, sections, room)
	if cut {
		p.out[p.base+2] |= flagTC >> 8
	}
	if opt < len(msg) {
		p.out = append(p.out, msg[opt:]...)
		p.count(2)
	}
	return p.out
}

// fill adds records as long as they go into room octets. cut is true when something is
// missing that the client must have (RFC 2181 section 9).
func (p *packer) fill(msg []byte, sections [3][]record, room int) (cut bool) {
	var owner [maxNameLen]byte
	for section, records := range sections {
		for _, rec := range records {
			before := len(p.out)
			p.add(section, msg, rec, spelled(owner[:0], msg, rec.off), nil)
			if p.size() > room {
				field := p.out[p.base+6+2*section:]
				binary.BigEndian.PutUint16(field, binary.BigEndian.Uint16(field)-1)
				p.out = p.out[:before]
				return section < 2
			}
		}
	}
	return false
}
