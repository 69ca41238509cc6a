package wire

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestMalformedReplies reads one reply a file, to the question that is in it; the folder
// says what becomes of it. P18, P29.
func TestMalformedReplies(t *testing.T) {
	for folder, want := range map[string]error{"malformed": ErrMalformed, "mismatch": ErrMismatch, "ok": nil} {
		files, _ := filepath.Glob("testdata/replies/" + folder + "/*.hex")
		if len(files) == 0 {
			t.Errorf("no replies in %s", folder)
		}
		for _, file := range files {
			t.Run(folder+"/"+strings.TrimSuffix(filepath.Base(file), ".hex"), func(t *testing.T) {
				question, _ := ParseName("example.test")
				question = append(question, 0, 1, 0, 1)
				var r Reply
				msg := readHex(t, file)
				err := r.Read(question, 0, msg)
				if !errors.Is(err, want) {
					t.Fatalf("%v, want %v", err, want)
				}
				if !errors.Is(want, ErrMismatch) && !r.Truncated {
					if _, _, ok := Check(question, msg); ok != (want == nil) {
						t.Errorf("Check says %v", ok)
					}
				}
				if err != nil {
					return
				}
				a := r.Answer(make([]byte, r.Size()), 0, 1000)
				var q Query
				if q.Read(packet(t, "eXample.test.", dns.TypeA, nil)) != OK {
					t.Fatal("query is not OK")
				}
				reply := a.AppendReply(nil, &q, Terms{Age: 1})
				if !whole(reply) {
					t.Errorf("reply %x is not whole", reply)
				}
				var m dns.Msg // which takes any A record for one of class IN
				if err := m.Unpack(reply); err != nil && !strings.Contains(file, "chaos") {
					t.Errorf("reply %x: %v", reply, err)
				}
			})
		}
	}
}

// reissue makes an answer of a reply with the given records and issues it.
func reissue(t *testing.T, query []byte, terms Terms, change func(*dns.Msg), records ...string) (*dns.Msg, []byte) {
	t.Helper()
	var q Query
	if q.Read(query) != OK {
		t.Fatal("query is not OK")
	}
	var m dns.Msg
	if err := m.Unpack(query); err != nil {
		t.Fatal(err)
	}
	up := new(dns.Msg)
	up.SetReply(&m)
	up.Compress = true
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		up.Answer = append(up.Answer, rr)
	}
	if change != nil {
		change(up)
	}
	packed, err := up.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var r Reply
	if err := r.Read(q.Question(), q.Variant(), packed); err != nil {
		t.Fatal(err)
	}
	a := r.Answer(make([]byte, r.Size()), 0, 1<<31-1)
	raw := a.AppendReply(nil, &q, terms)
	out := new(dns.Msg)
	if err := out.Unpack(raw); err != nil {
		t.Fatalf("%x: %v", raw, err)
	}
	return out, raw
}

func TestP01_ADOnlyForThoseWhoUnderstandIt(t *testing.T) {
	for _, c := range []struct {
		ad, do, upstream, want bool
	}{
		{false, false, true, false}, {true, false, true, true}, {false, true, true, true}, {true, true, false, false},
	} {
		q := packet(t, "example.test.", dns.TypeA, func(m *dns.Msg) {
			m.AuthenticatedData = c.ad
			if c.do {
				m.SetEdns0(1232, true)
			}
		})
		m, _ := reissue(t, q, Terms{}, func(m *dns.Msg) { m.AuthenticatedData = c.upstream }, "example.test. 60 IN A 192.0.2.1")
		if m.AuthenticatedData != c.want {
			t.Errorf("%+v: AD %v", c, m.AuthenticatedData)
		}
	}
}

// TestFlagsAreTheClients: RD and CD copied, RA set, AA and Z not passed on.
func TestFlagsAreTheClients(t *testing.T) {
	for _, rd := range []bool{false, true} {
		for _, cd := range []bool{false, true} {
			q := packet(t, "example.test.", dns.TypeA, func(m *dns.Msg) { m.RecursionDesired, m.CheckingDisabled, m.Zero = rd, cd, true })
			m, _ := reissue(t, q, Terms{}, func(m *dns.Msg) { m.RecursionAvailable, m.Zero = false, true }, "example.test. 60 IN A 192.0.2.1")
			if m.RecursionDesired != rd || m.CheckingDisabled != cd || !m.RecursionAvailable || m.Zero || m.Authoritative {
				t.Errorf("rd %v, cd %v: %v", rd, cd, &m.MsgHdr)
			}
		}
	}
}

// TestAdditionalMayBeLeftOut: RFC 2181 section 9, TC is for what must be there.
func TestAdditionalMayBeLeftOut(t *testing.T) {
	q := packet(t, "example.test.", dns.TypeMX, nil)
	m, raw := reissue(t, q, Terms{}, func(m *dns.Msg) {
		for i := range 40 {
			m.Extra = append(m.Extra, &dns.A{Hdr: dns.RR_Header{Name: "mx.example.test.", Rrtype: dns.TypeA, Class: 1, Ttl: 60}, A: []byte{192, 0, 2, byte(i)}})
		}
	}, "example.test. 60 IN MX 10 mx.example.test.")
	if m.Truncated || len(raw) > 512 || len(m.Answer) != 1 || len(m.Extra) == 0 || len(m.Extra) == 40 {
		t.Errorf("TC %v, %d octets, %d+%d records", m.Truncated, len(raw), len(m.Answer), len(m.Extra))
	}
}

// TestRcodeOfTwelveBits: the upper bits need OPT.
func TestRcodeOfTwelveBits(t *testing.T) {
	change := func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.Rcode = dns.RcodeBadCookie
	}
	m, _ := reissue(t, packet(t, "example.test.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false) }), Terms{}, change)
	if m.Rcode != dns.RcodeBadCookie {
		t.Errorf("with EDNS: %v", m)
	}
	m, _ = reissue(t, packet(t, "example.test.", dns.TypeA, nil), Terms{}, change)
	if m.Rcode != dns.RcodeServerFailure {
		t.Errorf("without: %v", m)
	}
}

// TestExtendedErrorGoesOn, but the rest of the upstream's options does not.
func TestExtendedErrorGoesOn(t *testing.T) {
	q := packet(t, "example.test.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false) })
	m, _ := reissue(t, q, Terms{}, func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.Rcode = dns.RcodeServerFailure
		m.IsEdns0().Option = []dns.EDNS0{
			&dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: "abcd"},
			&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeDNSBogus, ExtraText: "inside knowledge"},
		}
	})
	opt := m.IsEdns0()
	if len(opt.Option) != 1 || opt.Option[0].(*dns.EDNS0_EDE).InfoCode != dns.ExtendedErrorCodeDNSBogus || opt.Option[0].(*dns.EDNS0_EDE).ExtraText != "" {
		t.Errorf("options %v", opt.Option)
	}
}

// TestOddLayoutsAreTidied: OPT in the middle, owners written out, other letter case.
func TestOddLayoutsAreTidied(t *testing.T) {
	q := packet(t, "wWw.example.test.", dns.TypeA, nil)
	for what, change := range map[string]func(*dns.Msg){
		"uncompressed": func(m *dns.Msg) { m.Compress = false },
		"OPT first": func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.Extra = append(m.Extra, rr(t, "lb.test. 60 IN A 192.0.2.7"))
		},
		"other case": func(m *dns.Msg) { m.Question[0].Name = "WWW.EXAMPLE.TEST." },
		"signed, no DO": func(m *dns.Msg) {
			m.Answer = append(m.Answer, rr(t, "lb.test. 60 IN RRSIG A 8 2 60 20300101000000 20200101000000 1 test. AAAA"))
		},
	} {
		m, raw := reissue(t, q, Terms{}, change, "WWW.example.test. 60 IN CNAME lb.test.", "lb.test. 60 IN A 192.0.2.1", "lb.test. 60 IN A 192.0.2.2")
		if len(m.Answer) != 3 || m.Answer[0].Header().Name != "wWw.example.test." || m.IsEdns0() != nil {
			t.Errorf("%s: %v", what, m)
		}
		if !bytes.Contains(raw, []byte{0xc0, 12, 0, 5}) {
			t.Errorf("%s: the owner is no pointer to the question: %x", what, raw)
		}
	}
}

func rr(t *testing.T, text string) dns.RR {
	t.Helper()
	rr, err := dns.NewRR(text)
	if err != nil {
		t.Fatal(err)
	}
	return rr
}

func TestRotateTurnsWholeSets(t *testing.T) {
	q := packet(t, "www.test.", dns.TypeA, nil)
	records := []string{"www.test. 60 IN CNAME lb.test.", "lb.test. 60 IN A 192.0.2.1", "lb.test. 60 IN A 192.0.2.2", "lb.test. 60 IN A 192.0.2.3"}
	for turn := range uint32(7) {
		m, _ := reissue(t, q, Terms{Rotate: turn}, nil, records...)
		var got []string
		for _, rr := range m.Answer[1:] {
			got = append(got, rr.(*dns.A).A.String())
		}
		want := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}
		n := int(turn % 3)
		if want = slices.Concat(want[n:], want[:n]); !slices.Equal(got, want) || m.Answer[0].Header().Rrtype != dns.TypeCNAME {
			t.Errorf("turn %d: %v", turn, m.Answer)
		}
	}
}

func TestExchangersAreTurned(t *testing.T) {
	var q Query
	q.Read(packet(t, "www.test.", dns.TypeMX, nil))
	up := new(dns.Msg)
	up.SetQuestion("www.test.", dns.TypeMX)
	up.Response, up.Compress = true, true
	for i := range 60 { // too many for 512 octets
		up.Answer = append(up.Answer, rr(t, fmt.Sprintf("www.test. 60 IN MX 10 mx%d.test.", i)))
	}
	packed, _ := up.Pack()
	var r Reply
	if err := r.Read(q.Question(), 0, packed); err != nil {
		t.Fatal(err)
	}
	a := r.Answer(make([]byte, r.Size()), 0, 60)
	for turn := range uint32(3) {
		for _, transport := range []Transport{UDP, TCP} {
			raw := a.AppendReordered(nil, &q, Terms{Rotate: turn, Transport: transport, Age: 10})
			var m dns.Msg
			if err := m.Unpack(raw); err != nil {
				t.Fatal(err)
			}
			if m.Truncated != (transport == UDP) || transport == UDP && len(raw) > 512 || transport == TCP && len(m.Answer) != 60 {
				t.Errorf("%s: TC %v, %d octets, %d records", transport, m.Truncated, len(raw), len(m.Answer))
			}
			if want := fmt.Sprintf("mx%d.test.", turn); m.Answer[0].(*dns.MX).Mx != want || m.Answer[0].Header().Ttl != 50 {
				t.Errorf("turn %d: first is %v", turn, m.Answer[0])
			}
		}
	}
}

// TestCutMovesPointers: the denial of a name above, whatever its SOA points at.
func TestCutMovesPointers(t *testing.T) {
	for _, soa := range []string{
		"cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 2 3 4 5",
		"local. 30 IN SOA other.example. h.other.example. 1 2 3 4 5",
		". 30 IN SOA a.root. b.root. 1 2 3 4 5",
	} {
		up := new(dns.Msg)
		up.SetQuestion("com.team-a.svc.cluster.local.", dns.TypeA)
		up.Response, up.Compress, up.Rcode = true, true, dns.RcodeNameError
		up.Ns = []dns.RR{rr(t, soa)}
		packed, _ := up.Pack()
		var r Reply
		question, _ := ParseName("com.team-a.svc.cluster.local")
		if err := r.Read(append(question, 0, 1, 0, 1), 0, packed); err != nil {
			t.Fatal(err)
		}
		a := r.Answer(make([]byte, r.Size()), 0, 30)
		if !a.Cuts() {
			t.Fatalf("%s: does not cut", soa)
		}
		query := packet(t, "www.eXample.com.team-a.svc.cluster.local.", dns.TypeAAAA, func(m *dns.Msg) { m.SetEdns0(1232, false) })
		var q Query
		q.Read(query)
		var m dns.Msg
		if err := m.Unpack(a.AppendCut(nil, &q, Terms{Age: 10, EDE: EDESynthesized})); err != nil {
			t.Fatal(err)
		}
		want := rr(t, soa)
		want.Header().Ttl = 20
		if m.Rcode != dns.RcodeNameError || m.Question[0].Name != "www.eXample.com.team-a.svc.cluster.local." ||
			len(m.Ns) != 1 || m.Ns[0].String() != want.String() || m.IsEdns0() == nil {
			t.Errorf("%s:\n%v", soa, &m)
		}
	}
}

func TestCutNeedsABareNameError(t *testing.T) {
	soa := "test. 30 IN SOA ns. h. 1 2 3 4 5"
	for what, change := range map[string]func(*dns.Msg){
		"no data":    func(m *dns.Msg) { m.Rcode = 0 },
		"failure":    func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure },
		"no SOA":     func(m *dns.Msg) { m.Ns = nil },
		"NS, no SOA": func(m *dns.Msg) { m.Ns = []dns.RR{rr(t, "test. 30 IN NS ns.")} },
		"alias":      func(m *dns.Msg) { m.Answer = []dns.RR{rr(t, "a.b.test. 30 IN CNAME c.test.")} },
		"long record": func(m *dns.Msg) {
			m.Ns[0].(*dns.SOA).Mbox = strings.Repeat(strings.Repeat("a", 63)+".", 3) + "test."
		},
	} {
		up := new(dns.Msg)
		up.SetQuestion("a.b.test.", dns.TypeA)
		up.Response, up.Compress, up.Rcode = true, true, dns.RcodeNameError
		up.Ns = []dns.RR{rr(t, soa)}
		change(up)
		packed, _ := up.Pack()
		question, _ := ParseName("a.b.test")
		var r Reply
		if err := r.Read(append(question, 0, 1, 0, 1), 0, packed); err != nil {
			t.Fatal(err)
		}
		if a := r.Answer(make([]byte, r.Size()), 0, 30); a.Cuts() {
			t.Errorf("%s: cuts", what)
		}
	}
}

// TestAnswers: what is a reply to a question, and what is not (RFC 5452 section 9.1).
func TestAnswers(t *testing.T) {
	packed := packet(t, "example.test.", dns.TypeA, nil)
	question := bytes.Clone(packed[headerLen:])
	reply := bytes.Clone(packed)
	reply[2] |= 0x80
	for what, change := range map[string]func([]byte) []byte{
		"a query":        func(b []byte) []byte { b[2] &^= 0x80; return b },
		"other opcode":   func(b []byte) []byte { b[2] |= 0x20; return b },
		"other name":     func(b []byte) []byte { b[13] = 'x'; return b },
		"other type":     func(b []byte) []byte { b[len(b)-3] = 28; return b },
		"other class":    func(b []byte) []byte { b[len(b)-1] = 3; return b },
		"no question":    func(b []byte) []byte { b[5] = 0; return b },
		"two questions":  func(b []byte) []byte { b[5] = 2; return b },
		"cut off":        func(b []byte) []byte { return b[:len(b)-1] },
		"header cut off": func(b []byte) []byte { return b[:11] },
	} {
		if answers(question, change(bytes.Clone(reply))) {
			t.Errorf("%s: matches", what)
		}
	}
	upper := bytes.ToUpper(reply[12:25])
	if !answers(question, reply) || !answers(question, slices.Concat(reply[:12], upper, reply[25:])) {
		t.Error("the reply, or its like in capitals, does not match")
	}
}

// whole tells whether all records that the header of msg counts are there, with sound names
// and lengths.
func whole(msg []byte) bool {
	q := Query{msg: msg}
	if len(msg) < headerLen || msg[4] != 0 || msg[5] != 1 || !q.readQuestion() {
		return false
	}
	r := Reply{question: q.Question(), variant: DO}
	return r.walk(msg) != layoutBroken
}

func TestNothingAllocates(t *testing.T) {
	plain := packet(t, "www.example.test.", dns.TypeA, nil)
	edns := packet(t, "www.example.test.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false) })
	up := new(dns.Msg)
	up.SetQuestion("www.example.test.", dns.TypeA)
	up.Response, up.Compress = true, true
	for range 100 { // too many for 512 octets
		up.Answer = append(up.Answer, rr(t, "www.example.test. 60 IN A 192.0.2.1"))
	}
	packed, _ := up.Pack()
	var q Query
	var r Reply
	q.Read(plain)
	if err := r.Read(q.Question(), 0, packed); err != nil {
		t.Fatal(err)
	}
	a := r.Answer(make([]byte, r.Size()), 0, 60)
	buf := make([]byte, 4096)
	for _, packet := range [][]byte{plain, edns} {
		if n := testing.AllocsPerRun(100, func() {
			var q Query
			if q.Read(packet) == OK {
				a.AppendReply(buf[:0], &q, Terms{Age: 1, Rotate: 3})
				q.AppendStatus(buf[:0], ServFail, EDECachedError)
				Check(q.Question(), packed)
			}
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

func BenchmarkQuery(b *testing.B) {
	p := packet(b, "www.example.test.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false) })
	b.ReportAllocs()
	for b.Loop() {
		var q Query
		if q.Read(p) != OK {
			b.Fatal("not OK")
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	seed := replySeeds(b)[1]
	var own Query
	own.msg = seed
	own.readQuestion()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := Check(own.Question(), seed); !ok {
			b.Fatal("malformed")
		}
	}
}

func BenchmarkReply(b *testing.B) {
	for _, seed := range replySeeds(b)[1:2] {
		var own Query
		own.msg = seed
		own.readQuestion()
		b.ReportAllocs()
		for b.Loop() {
			var r Reply
			if err := r.Read(own.Question(), DO, seed); err != nil {
				b.Fatal(err)
			}
			r.Answer(make([]byte, r.Size()), 0, 60)
		}
	}
}
