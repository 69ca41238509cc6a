package wire

import "fmt"

// Rename returns reply, an answer to the question from, as an answer to the question
// to, with every owner name passed through owner and every name in the data of records
// through value, both in presentation format.
func Rename(reply, from, to []byte, owner, value func(string) string) ([]byte, error) {
	if !answers(from, reply) {
		return nil, ErrMismatch
	}
	var err error
	through := func(f func(string) string) func([]byte) []byte {
		return func(name []byte) []byte {
			was := FormatName(name)
			now := f(was)
			if now == was {
				return name // with whatever the presentation format cannot say
			}
			changed, perr := packName(now)
			if perr != nil {
				err = fmt.Errorf("renaming %s: %w", was, perr)
				return name
			}
			return changed
		}
	}
	rename := through(owner)
	p := newPacker(nil, reply, to)
	r := Reply{question: from}
	sound := r.records(reply, func(section int, rec record) {
		var buf [maxNameLen]byte
		name := spelled(buf[:0], reply, rec.off)
		if rec.rtype != TypeOPT {
			name = rename(name)
		}
		p.add(section, reply, rec, name, through(value))
	})
	switch {
	case !sound:
		return nil, ErrMalformed
	case err == nil && p.size() > maxMessage:
		err = fmt.Errorf("a renamed reply of %d octets", p.size())
	}
	return p.out, err
}

// renamed tells whether a rewrite may change the names in the data of a type.
func renamed(rtype uint16) bool {
	switch rtype {
	case TypeCNAME, TypeDNAME, TypeSOA, TypeSRV, TypeMX, TypeNAPTR, TypeNS, TypePTR:
		return true
	}
	return false
}
