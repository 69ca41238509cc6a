package wire

// AppendTXT appends a reply to q with one TXT record that holds text, at most 255
// octets, with a TTL of 0.
func (q *Query) AppendTXT(dst, text []byte) []byte {
	var opt uint16
	if q.EDNS {
		opt = 1
	}
	text = text[:min(len(text), 255)]
	n := len(text) + 1
	dst = q.appendHeader(dst, flagAA, NoError, 1, 0, opt)
	dst = append(dst, 0xc0, headerLen, 0, TypeTXT, byte(q.Class>>8), byte(q.Class), 0, 0, 0, 0, byte(n>>8), byte(n), byte(n-1))
	dst = append(dst, text...)
	if q.EDNS {
		dst = q.appendOPT(dst, NoError, NoEDE)
	}
	return dst
}
