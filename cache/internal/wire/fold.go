package wire

import "encoding/binary"

// fold copies src to dst with ASCII letters in lower case (RFC 4343) and nothing else
// changed. A whole name may be folded at once: a length octet is at most 63, below 'A'.
// Eight octets a step; dst is at least as long as src.
func fold(dst, src []byte) {
	n := len(src)
	dst = dst[:n]
	i := 0
	for ; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], foldWord(binary.LittleEndian.Uint64(src[i:])))
	}
	for ; i < n; i++ {
		c := src[i]
		if c-'A' < 26 {
			c |= 0x20
		}
		dst[i] = c
	}
}

// foldWord lower-cases eight octets: an octet is upper case when it is below 0x80, not
// below 'A' and not above 'Z'; the two sums put either comparison into its top bit.
func foldWord(v uint64) uint64 {
	const ones = 0x0101010101010101
	low := v & (0x7f * ones)
	geA := low + (0x80-'A')*ones
	gtZ := low + (0x7f-'Z')*ones
	upper := ^v & (geA ^ gtZ) & (0x80 * ones)
	return v | upper>>2
}
