package wire

import "encoding/binary"

// Check looks through reply, which has question, without keeping anything. ok is false
// when Read would find it malformed, for lack of octets if nothing else; rcode and edns,
// whether there is OPT, are valid otherwise.
func Check(question, reply []byte) (rcode Rcode, edns, ok bool) {
	rcode = Rcode(reply[3] & 15)
	authority := int(binary.BigEndian.Uint16(reply[6:])) + int(binary.BigEndian.Uint16(reply[8:]))
	total := authority + int(binary.BigEndian.Uint16(reply[10:]))
	off := headerLen + len(question)
	var names *Reply // nobody needs them
	for i := range total {
		rec, ok := names.readRecord(reply, off)
		if !ok {
			return rcode, edns, false
		}
		if rec.rtype == TypeOPT {
			if i >= authority && rec.owner == ownerRoot && !edns {
				rcode |= Rcode(rec.ttl>>24) << 4
			}
			edns = true
		}
		off = rec.end
	}
	return rcode, edns, true
}
