package wire

import "encoding/binary"

// readOPT looks for OPT in a message that is rejected for another reason: whatever the
// reason, the reply to one with OPT has one too (RFC 6891 section 6.1.1).
func (q *Query) readOPT() {
	off := headerLen
	for range binary.BigEndian.Uint16(q.msg[4:]) {
		next, _, ok := skipName(q.msg, off)
		if !ok || next+4 > len(q.msg) {
			return
		}
		off = next + 4
	}
	q.readRecords(off)
}

// readRecords walks what follows the question, at off, for OPT's sake. Other records are
// checked for their frame only and ignored: the SOA of IXFR, TSIG.
func (q *Query) readRecords(off int) Rcode {
	msg := q.msg
	authority := int(binary.BigEndian.Uint16(msg[6:])) + int(binary.BigEndian.Uint16(msg[8:]))
	total := authority + int(binary.BigEndian.Uint16(msg[10:]))
	badVersion := false
	for i := range total {
		fixed, _, ok := skipName(msg, off)
		if !ok || fixed+10 > len(msg) {
			return FormErr
		}
		end := fixed + 10 + int(binary.BigEndian.Uint16(msg[fixed+8:]))
		if end > len(msg) {
			return FormErr
		}
		if binary.BigEndian.Uint16(msg[fixed:]) == TypeOPT {
			// RFC 6891 section 6.1.1: in the additional section, once, owned by the root.
			again := q.EDNS
			q.EDNS = true
			if i < authority || again || msg[off] != 0 {
				return FormErr
			}
			q.size = max(binary.BigEndian.Uint16(msg[fixed+2:]), minUDPSize)
			if msg[fixed+6]&0x80 != 0 {
				q.variant |= DO
			}
			// What follows the version is only known for version 0 (section 6.1.3).
			if msg[fixed+5] != 0 {
				badVersion = true
			} else if !optionsOK(msg[fixed+10 : end]) {
				return FormErr
			}
		}
		off = end
	}
	if badVersion {
		return BadVers
	}
	return NoError
}

// optionsOK checks the frames of EDNS options. Their content is nobody's business:
// client subnet, cookie, padding and keepalive neither reach the upstream nor the key.
func optionsOK(b []byte) bool {
	for len(b) > 0 {
		if len(b) < 4 {
			return false
		}
		n := 4 + int(binary.BigEndian.Uint16(b[2:]))
		if n > len(b) {
			return false
		}
		b = b[n:]
	}
	return true
}
