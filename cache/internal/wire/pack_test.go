package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/miekg/dns"
)

// TestRFC3597_DataPassesOctetByOctet: whatever the layout of the reply, data goes on as
// it came, also data that presentation format cannot say or that its type forbids.
func TestRFC3597_DataPassesOctetByOctet(t *testing.T) {
	name := "\x01t\x07example\x03org\x00"
	for _, c := range []struct {
		rtype, class uint16
		data         string
	}{
		{256, 1, "\x00\x0a\x00\x01http://x/\\032y\xff"},                                                     // URI
		{257, 1, "\x00\x05issueca.test\\;p=\\\"\xff"},                                                       // CAA
		{20, 1, "\x0a1234567890"},                                                                           // ISDN without a subaddress
		{29, 1, "\x00\x12\x34\x56" + "\x80\x00\x00\x00\x80\x00\x00\x00\x00\x98\x96\x80"},                    // LOC
		{27, 1, "\x03-32\x03116\x0210"},                                                                     // GPOS
		{30, 1, name + "\x40\x00\x00\x00"},                                                                  // NXT
		{24, 1, "\x00\x01\x08\x02\x00\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x01\x12\x34" + name + "SSSS"}, // SIG
		{35, 1, "\x00\x64\x00\x32\x01u\x07E2U+sip\x05!^.*!" + name},                                         // NAPTR
		{1, ClassCH, name + "\x00\x07"},
		{16, 1, ""}, {16, 1, "\x05ab"}, {64, 1, "\x00\x00"}, {65, 1, "\x00\x01\x00\x00\x03\x00"},
		{24, 1, "abc"}, {35, 1, "\x00"}, {35, 1, "\x00\x01\x00\x01\x09a"}, {14, 1, name + name},
		{65280, 1, "\xc0\x0c\xff"}, {10, 3, "\x00\xff"}, {250 + 1<<8, 1, ""},
	} {
		question := []byte("\x01v\x04test\x00")
		question = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(question, c.rtype), c.class)
		for layout, msg := range map[string][]byte{
			"plain":       rawReply(question, "\xc0\x0c", c.data, ""),
			"spelled out": rawReply(question, "\x01v\x04test\x00", c.data, ""),
			"OPT first":   rawReply(question, "\xc0\x0c", c.data, "\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"),
		} {
			t.Run(fmt.Sprintf("%d/%x/%s", c.rtype, c.data, layout), func(t *testing.T) {
				var r Reply
				if err := r.Read(question, 0, msg); err != nil {
					t.Fatal(err)
				}
				a := r.Answer(make([]byte, r.Size()), 0, 60)
				var q Query
				q.Read(clientQuery(question, 0, false, 0))
				reply := a.AppendReply(nil, &q, Terms{Transport: TCP})
				want := append([]byte{0xc0, 12}, question[len(question)-4:]...)
				want = append(want, 0, 0, 0, 60, 0, byte(len(c.data)))
				want = append(want, c.data...)
				if got := reply[headerLen+len(question):]; !bytes.HasPrefix(got, want) {
					t.Errorf("%x\nwant %x", got, want)
				}
			})
		}
	}
}

// rawReply is a reply with one record and, if first is not empty, that one and a last one
// in the additional section.
func rawReply(question []byte, owner, data, first string) []byte {
	b := append([]byte{0, 0, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}, question...)
	b = append(append(b, owner...), question[len(question)-4:]...)
	b = append(b, 0, 0, 0, 60, 0, byte(len(data)))
	b = append(b, data...)
	if first != "" {
		b[11] = 2
		b = append(b, first...)
		b = append(b, "\x01g\x04test\x00\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x09"...)
	}
	return b
}

// TestRFC3597_CompressedNamesAreWrittenOut: a name that was compressed against the rules
// still reads the same when the message is packed anew; miekg/dns is the judge.
func TestRFC3597_CompressedNamesAreWrittenOut(t *testing.T) {
	for rtype, data := range map[uint16]string{
		TypeSRV:  "\x00\x01\x00\x02\x00\x03\xc0\x0c",
		TypeSVCB: "\x00\x01\xc0\x0c", TypeNSEC: "\xc0\x0c\x00\x01\x40",
		TypeNAPTR: "\x00\x01\x00\x01\x01u\x00\x00\xc0\x0c",
		TypeRRSIG: "\x00\x01\x08\x02\x00\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x01\x12\x34\xc0\x0eSSSS",
		17:        "\xc0\x0c\xc0\x0e", 39: "\xc0\x0e",
	} {
		// The owner before it is written out, so all that follows moves.
		question := append([]byte("\x01v\x04test\x00"), byte(rtype>>8), byte(rtype), 0, 1)
		msg := rawReply(question, "\x01v\x04test\x00", data, "")
		var want, got dns.Msg
		if err := want.Unpack(msg); err != nil {
			t.Fatal(err)
		}
		var r Reply
		if err := r.Read(question, DO, msg); err != nil {
			t.Fatal(err)
		}
		a := r.Answer(make([]byte, r.Size()), 0, 60)
		var q Query
		q.Read(clientQuery(question, DO, false, 1232))
		reply := a.AppendReply(nil, &q, Terms{})
		if err := got.Unpack(reply); err != nil {
			t.Fatal(err)
		}
		if w, g := texts(want.Answer, nil, Terms{}), texts(got.Answer, nil, Terms{}); g[0] != w[0] {
			t.Errorf("%s, want %s", g[0], w[0])
		}
		if bytes.Contains(reply[headerLen+len(question)+12:], []byte{0xc0}) {
			t.Errorf("type %d: still compressed: %x", rtype, reply)
		}
	}
}

// TestP04_WrongOPTsAreLeftOut, and the answer is used.
func TestP04_WrongOPTsAreLeftOut(t *testing.T) {
	for _, file := range []string{"opt-in-the-answer", "opt-not-at-root", "option-longer-than-opt", "two-opts"} {
		question, _ := ParseName("example.test")
		question = append(question, 0, 1, 0, 1)
		var r Reply
		if err := r.Read(question, 0, readHex(t, "testdata/replies/ok/"+file+".hex")); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		a := r.Answer(make([]byte, r.Size()), 0, 60)
		var q Query
		q.Read(packet(t, "example.test.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false) }))
		var m dns.Msg
		if err := m.Unpack(a.AppendReply(nil, &q, Terms{})); err != nil {
			t.Fatal(err)
		}
		if len(m.Extra) != 1 || m.IsEdns0() == nil || len(m.IsEdns0().Option) != 0 || !r.HasOPT {
			t.Errorf("%s: %v", file, &m)
		}
	}
}

// TestRenameKeepsTheRest: names in the data are renamed, other octets are not touched.
func TestRenameKeepsTheRest(t *testing.T) {
	swap := func(n string) string {
		if n == "v.test." {
			return "w.example."
		}
		return n
	}
	for _, c := range []struct {
		rtype      byte
		data, want string
	}{
		{TypeCNAME, "\xc0\x0c", "\x00\x02\xc0\x0c"},
		{TypeSRV, "\x00\x01\x00\x02\x00\x03\x01v\x04test\x00", "\x00\x11\x00\x01\x00\x02\x00\x03\x01w\x07example\x00"},
		{TypeNAPTR, "\x00\x01\x00\x01\x01u\x00\x00\x01v\x04test\x00", "\x00\x13\x00\x01\x00\x01\x01u\x00\x00\x01w\x07example\x00"},
		{TypeTXT, "\x05a\\032", "\x00\x06\x05a\\032"},
		{TypeNSEC, "\x01v\x04test\x00\x00\x01\x40", "\x00\x0b\x01v\x04test\x00\x00\x01\x40"},
	} {
		from := append([]byte("\x01v\x04test\x00"), 0, c.rtype, 0, 1)
		to := append([]byte("\x01w\x07example\x00"), 0, c.rtype, 0, 1)
		got, err := Rename(rawReply(from, "\xc0\x0c", c.data, ""), from, to, swap, swap)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(got, []byte(c.want)) || !bytes.Equal(got[headerLen:headerLen+len(to)], to) {
			t.Errorf("type %d: %x", c.rtype, got)
		}
	}
}
