package wire

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// readHex reads a packet written in hex, with comments.
func readHex(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return b
}

// TestMalformed reads one packet a file; the folder says what becomes of it.
// P11, P21, P23, P25, P27.
func TestMalformed(t *testing.T) {
	want := map[string]struct {
		verdict Verdict
		rcode   Rcode
	}{
		"silent": {Silent, 0}, "formerr": {Reject, FormErr}, "notimp": {Reject, NotImp},
		"refused": {Reject, Refused}, "badvers": {Reject, BadVers}, "ok": {OK, NoError},
	}
	for folder, w := range want {
		files, _ := filepath.Glob("testdata/malformed/" + folder + "/*.hex")
		if len(files) == 0 {
			t.Errorf("no packets in %s", folder)
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".hex")
			t.Run(folder+"/"+name, func(t *testing.T) {
				packet := readHex(t, file)
				before := bytes.Clone(packet)
				var q Query
				if v := q.Read(packet); v != w.verdict {
					t.Fatalf("verdict %d (%s), want %d", v, q.Rcode, w.verdict)
				}
				if w.verdict == Reject && q.Rcode != w.rcode {
					t.Fatalf("rcode %s, want %s", q.Rcode, w.rcode)
				}
				checkError(t, packet, AppendError(nil, packet, ServFail), w.verdict, w.rcode)
				if !bytes.Equal(packet, before) {
					t.Error("the packet was changed")
				}
			})
		}
	}
}

// TestRFC6891_RejectedWithOPT: a reply to a query with OPT has one, whatever the reason to
// reject it; one without has none.
func TestRFC6891_RejectedWithOPT(t *testing.T) {
	opt := "\x00\x00\x29\x04\xd0\x00\x00\x80\x00\x00\x00"
	question := "\x07example\x04test\x00\x00\x06\x00\x01"
	for what, c := range map[string]struct{ header, rest string }{
		"IQUERY":                    {"\x00\x07\x08\x00\x00\x01\x00\x00\x00\x00\x00\x01", question + opt},
		"NOTIFY":                    {"\x00\x07\x24\x00\x00\x01\x00\x00\x00\x00\x00\x01", question + opt},
		"UPDATE":                    {"\x00\x07\x28\x00\x00\x01\x00\x00\x00\x01\x00\x01", question + "\xc0\x0c\x00\xff\x00\xff\x00\x00\x00\x00\x00\x00" + opt},
		"DSO":                       {"\x00\x07\x30\x00\x00\x00\x00\x00\x00\x00\x00\x01", opt},
		"no question":               {"\x00\x07\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01", opt},
		"two questions":             {"\x00\x07\x01\x00\x00\x02\x00\x00\x00\x00\x00\x01", question + question + opt},
		"OPT in the answer section": {"\x00\x07\x01\x00\x00\x01\x00\x01\x00\x00\x00\x00", question + opt},
		"AXFR":                      {"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01", "\x07example\x04test\x00\x00\xfc\x00\x01" + opt},
	} {
		with := []byte(c.header + c.rest)
		var m dns.Msg
		if err := m.Unpack(AppendError(nil, with, ServFail)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if m.IsEdns0() == nil || m.Rcode == dns.RcodeServerFailure {
			t.Errorf("%s: %v", what, &m)
		}
		without := bytes.Clone(with[:len(with)-len(opt)])
		without[7], without[11] = 0, 0
		m = dns.Msg{}
		if err := m.Unpack(AppendError(nil, without, ServFail)); err != nil {
			t.Fatalf("%s without: %v", what, err)
		}
		if m.IsEdns0() != nil {
			t.Errorf("%s without: %v", what, &m)
		}
	}
}

// checkError checks the reply of AppendError(packet, ServFail).
func checkError(t *testing.T, packet, reply []byte, v Verdict, rcode Rcode) {
	t.Helper()
	if v == Silent {
		if len(reply) != 0 {
			t.Fatalf("answered with %x", reply)
		}
		return
	}
	if v == OK {
		rcode = ServFail
	}
	var m dns.Msg
	if err := m.Unpack(reply); err != nil {
		t.Fatalf("reply %x: %v", reply, err)
	}
	if m.Rcode != int(rcode) || !m.Response || m.Id != uint16(packet[0])<<8|uint16(packet[1]) {
		t.Errorf("reply is %v", &m.MsgHdr)
	}
	if m.Opcode != int(packet[2]>>3&15) {
		t.Errorf("opcode %d", m.Opcode)
	}
	if m.Zero || m.Truncated || len(m.Answer)+len(m.Ns) > 0 {
		t.Errorf("too much in reply %v", &m)
	}
	if opt := m.IsEdns0(); opt != nil && opt.Version() != 0 {
		t.Errorf("OPT version %d", opt.Version())
	}
	if (v == OK || rcode == BadVers || rcode == Refused) && len(m.Question) != 1 {
		t.Error("question is missing")
	}
	if n := len(m.Question); n > 0 && !bytes.HasPrefix(packet[headerLen:], reply[headerLen:headerLen+questionLen(reply)]) {
		t.Error("question is not the client's")
	}
}

func questionLen(msg []byte) int {
	end, _, _ := skipName(msg, headerLen)
	return end + 4 - headerLen
}

func TestP20_FoldTouchesASCIILettersOnly(t *testing.T) {
	var in [256]byte
	for i := range in {
		in[i] = byte(i)
	}
	for shift := range 9 { // all positions in a word, and the rest behind the last one
		src := append(bytes.Repeat([]byte{'.'}, shift), in[:]...)
		got := make([]byte, len(src))
		fold(got, src)
		for i, c := range src {
			want := c
			if 'A' <= c && c <= 'Z' {
				want = c + 'a' - 'A'
			}
			if got[i] != want {
				t.Fatalf("octet %#x at %d folds to %#x, want %#x", c, i, got[i], want)
			}
		}
	}
}

func TestP20_TypeAndClassAreNotFolded(t *testing.T) {
	// Type 65 is the letter A; folded it would be type 97.
	var q Query
	if v := q.Read(packet(t, "a.test.", dns.TypeHTTPS, nil)); v != OK {
		t.Fatal(v)
	}
	if got := q.Question()[len(q.Question())-4:]; !bytes.Equal(got, []byte{0, 65, 0, 1}) {
		t.Errorf("type and class are %x", got)
	}
}

func TestUnder(t *testing.T) {
	for _, c := range []struct {
		name, zone string
		want       bool
	}{
		{"a.cluster.local", "cluster.local", true},
		{"cluster.local", "cluster.local", true},
		{"notcluster.local", "cluster.local", false},
		{`x\007cluster.local`, "cluster.local", false}, // looks like the label's length octet
		{"local", "cluster.local", false},
		{"a.b.c.test", ".", true},
		{".", ".", true},
		{".", "test", false},
		{"A.Cluster.LOCAL", "cluster.local", true},
	} {
		name, err := ParseName(c.name)
		if err != nil {
			t.Fatal(err)
		}
		zone, err := ParseName(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := Under(name, zone); got != c.want {
			t.Errorf("Under(%q, %q) = %v", c.name, c.zone, got)
		}
	}
}

func TestP25_ParseNameCountsWireOctets(t *testing.T) {
	a := strings.Repeat("a", 63) + "."
	binary := strings.Repeat(`\000`, 63) + "."
	for _, c := range []struct {
		name string
		ok   bool
	}{
		{a + a + a + strings.Repeat("a", 61), true},
		{a + a + a + strings.Repeat("a", 62), false},
		{binary + binary + binary + strings.Repeat(`\255`, 61), true},
		{strings.Repeat("a", 64), false},
		{"a..b", false},
		{"", false},
		{".", true},
		{"under_score.*.x y.test", true},
	} {
		b, err := ParseName(c.name)
		if (err == nil) != c.ok {
			t.Errorf("%d characters: %v", len(c.name), err)
		}
		if err == nil && len(b) > 255 {
			t.Errorf("%d octets", len(b))
		}
	}
}

// packet returns a query made by miekg/dns.
func packet(t testing.TB, name string, qtype uint16, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.Id = 0x1a2b
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
