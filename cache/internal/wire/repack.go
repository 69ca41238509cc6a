package wire

// repack packs msg, whose records are sound, anew in the layout that walk calls plain:
// the question in lower case, owners equal to it as a pointer, names compressed, no OPT
// or TSIG, no DNSSEC records for a query without DO. ok is false when the message grows
// too large that way.
func (r *Reply) repack(msg []byte) (packed []byte, ok bool) {
	p := newPacker(make([]byte, 0, len(msg)), msg, r.question)
	var owner [maxNameLen]byte
	ok = r.records(msg, func(section int, rec record) {
		if !r.unwanted(rec.rtype) {
			p.add(section, msg, rec, spelled(owner[:0], msg, rec.off), nil)
		}
	})
	return p.out, ok && p.size() <= maxMessage
}
