package wire

import "bytes"

// AliasEnd returns the folded name that the aliases in reply lead to, if reply says
// nothing more about it. ok is false for anything else: no alias, an end that has the
// records asked for, a failure, a question for aliases themselves.
func AliasEnd(question, reply []byte) (name []byte, ok bool) {
	if !answers(question, reply) || reply[3]&15 != byte(NoError) {
		return nil, false
	}
	r := Reply{question: question}
	if qtype := r.qtype(); qtype == TypeCNAME || qtype == TypeANY {
		return nil, false
	}
	name = question[:len(question)-4]
	answered := false
	sound := r.records(reply, func(section int, rec record) {
		var buf [maxNameLen]byte
		if section != 0 || !bytes.Equal(expand(buf[:0], reply, rec.off), name) {
			return
		}
		switch rec.rtype {
		case TypeCNAME:
			name, ok = expand(nil, reply, rec.fixed+10), true
		case r.qtype():
			answered = true
		}
	})
	return name, sound && ok && !answered
}

// AppendRest appends reply, an answer to question whose aliases lead to the name in
// target, with what rest, a reply to target, says about that name: answer and authority
// records, and the response code (RFC 6604 section 3).
func AppendRest(dst, question, reply, target, rest []byte) ([]byte, error) {
	if !answers(question, reply) || !answers(target, rest) {
		return nil, ErrMismatch
	}
	p := newPacker(dst, reply, question)
	p.out[p.base+3] = reply[3]&^15 | rest[3]&15
	for section := range 3 {
		parts := [][2][]byte{{question, reply}, {target, rest}}
		if section == 2 {
			parts = parts[:1] // what comes along with rest was for us
		}
		for _, part := range parts {
			msg := part[1]
			r := Reply{question: part[0]}
			sound := r.records(msg, func(at int, rec record) {
				if at == section {
					var buf [maxNameLen]byte
					p.add(section, msg, rec, spelled(buf[:0], msg, rec.off), nil)
				}
			})
			if !sound {
				return nil, ErrMalformed
			}
		}
	}
	if p.size() > maxMessage {
		return nil, ErrMalformed
	}
	return p.out, nil
}
