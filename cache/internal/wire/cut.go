package wire

// Cuts tells whether a can stand for any name below its own: a name error with a sound
// SOA record and no aliases (RFC 8020), and not one made on the spot, which is about its
// own name and no other. Other records of the authority section are of
// no use for another name.
func (a *Answer) Cuts() bool {
	if a.rcode != NXDomain || a.an != 0 || a.ns != 1 || a.ar != 0 || a.flags&(answerTC|answerAA) != 0 || a.records > maxCut {
		return false
	}
	rtype := a.ttlOffset(0) - headerLen - 4
	return a.packed[rtype] == 0 && a.packed[rtype+1] == TypeSOA
}

// maxCut makes sure that a reply by AppendCut needs no more than minUDPSize octets.
const maxCut = minUDPSize - headerLen - (maxNameLen + 4) - 17

// AppendCut appends the reply that q's name does not exist because the name of a, which
// lies above it, does not. a must Cut, and its name be the end of q's name.
//
// Everything in a stands as many octets further back in the new message as q's name is
// longer, question and record alike, so all its pointers move by that.
func (a *Answer) AppendCut(dst []byte, q *Query, t Terms) []byte {
	base := len(dst)
	var extra uint16
	if a.flags&answerAD != 0 && (q.flags&flagAD != 0 || q.variant&DO != 0) {
		extra |= flagAD
	}
	opt := q.optLen(t.EDE)
	count := uint16(0)
	if opt > 0 {
		count = 1
	}
	shift := q.qlen - int(a.qlen)
	dst = q.appendHeader(dst, extra, NXDomain, 0, 1, count)
	at := len(dst)
	dst = append(dst, a.packed[a.qlen:int(a.qlen)+int(a.records)]...)
	body := dst[at:]
	off := moveName(body, 0, shift)     // owner
	off = moveName(body, off+10, shift) // MNAME, behind the fixed fields
	moveName(body, off, shift)          // RNAME
	ttl := a.ttlOffset(0) + shift
	ageField(dst[base+ttl:], t)
	if opt > 0 {
		dst = q.appendOPT(dst, NXDomain, t.EDE)
	}
	return dst
}

// moveName adds shift to the pointer, if any, of the name at off and returns the offset
// behind the name.
func moveName(b []byte, off, shift int) int {
	for {
		c := int(b[off])
		switch {
		case c == 0:
			return off + 1
		case c >= 0xc0:
			to := (c&0x3f)<<8 | int(b[off+1])
			to += shift
			b[off], b[off+1] = 0xc0|byte(to>>8), byte(to)
			return off + 2
		default:
			off += c + 1
		}
	}
}
