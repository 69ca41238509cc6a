package wire

import (
	"bytes"
	"encoding/binary"
)

// rotate turns the addresses at the end of the answer section by n places; msg is a
// reply that begins with the first an answer records of a. Other records stay where
// they are, so that aliases come before addresses.
//
// Records are moved as bytes. That is sound while each is a pointer and an address, all
// with the same pointer: then no name reads differently afterwards, wherever it points.
func rotate(msg []byte, a *Answer, an int, n uint32) {
	first, size := an, 0
	for first > 0 {
		start, end := a.recordStart(first-1), a.recordEnd(first-1)
		rtype := binary.BigEndian.Uint16(msg[start+2:])
		if rtype != TypeA && rtype != TypeAAAA || a.ttlOffset(first-1) != start+6 {
			break
		}
		if size != 0 && (end-start != size || !bytes.Equal(msg[start:start+2], msg[end:end+2])) {
			break
		}
		size = end - start
		first--
	}
	count := an - first
	if count < 2 {
		return
	}
	start := a.recordStart(first)
	block := msg[start : start+count*size]
	turn := int(n%uint32(count)) * size
	reverse(block[:turn], size)
	reverse(block[turn:], size)
	reverse(block, size)
}

// reverse reverses the order of the records of size octets in block.
func reverse(block []byte, size int) {
	for i, j := 0, len(block)-size; i < j; i, j = i+size, j-size {
		for k := range size {
			block[i+k], block[j+k] = block[j+k], block[i+k]
		}
	}
}
