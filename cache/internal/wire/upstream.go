package wire

// AppendUpstream appends the query that asks an upstream for question with variant; its
// ID is 0. RD is set, and AD, so that the upstream's judgement comes back whoever asks
// first (RFC 6840 section 5.7). The OPT record at its end is our own: nothing in it is
// the client's but DO.
func AppendUpstream(dst, question []byte, variant Variant) []byte {
	var cd byte
	if variant&CD != 0 {
		cd = flagCD
	}
	dst = append(dst, 0, 0, flagRD>>8, flagAD|cd, 0, 1, 0, 0, 0, 0, 0, 1)
	dst = append(dst, question...)
	return append(dst, 0, 0, TypeOPT, EDNSSize>>8, EDNSSize&0xff, 0, 0, byte(variant&DO)<<7, 0, 0, 0)
}
