package wire

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// FuzzReply takes any octets for the reply of an upstream and holds what clients get
// of it against what miekg/dns reads in it.
func FuzzReply(f *testing.F) {
	for _, seed := range replySeeds(f) {
		f.Add(seed, uint8(0), uint16(0), uint32(7))
		f.Add(seed, uint8(1), uint16(1232), uint32(0))
		f.Add(seed, uint8(3), uint16(4096), uint32(100))
	}
	f.Fuzz(func(t *testing.T, msg []byte, bits uint8, size uint16, age uint32) {
		if len(msg) < headerLen || len(msg) > dns.MaxMsgSize {
			return
		}
		var own Query
		own.msg = msg
		if !own.readQuestion() {
			return
		}
		question := bytes.Clone(own.Question())
		variant := Variant(bits & 3)
		before := bytes.Clone(msg)
		var r Reply
		err := r.Read(question, variant, msg)
		if !bytes.Equal(msg, before) {
			t.Fatal("the reply was changed")
		}
		if own.msg[2]&0xf8 == 0x80 && msg[4] == 0 && msg[5] == 1 {
			rcode, edns, ok := Check(question, msg)
			if ok != (err == nil) && !r.Truncated || ok && (rcode != r.Rcode || edns != r.HasOPT) {
				t.Fatalf("checked: %s, EDNS %v, %v; read: %s, EDNS %v, %v", rcode, edns, ok, r.Rcode, r.HasOPT, err)
			}
		}
		if err != nil {
			return
		}
		a := r.Answer(make([]byte, r.Size()), 0, 1<<31-1)
		var oracle *dns.Msg
		if m := new(dns.Msg); m.Unpack(msg) == nil && len(m.Question) == 1 {
			oracle = m
		}
		for _, transport := range []Transport{UDP, TCP} {
			checkReissue(t, &a, question, variant, Terms{Age: age, Transport: transport, Limit: 4096, Rotate: uint32(bits >> 4)}, bits&4 != 0, size, oracle)
		}
	})
}

// checkReissue asks for a as a client with the given OPT and checks the reply.
func checkReissue(t *testing.T, a *Answer, question []byte, variant Variant, terms Terms, ad bool, size uint16, oracle *dns.Msg) {
	t.Helper()
	packet := clientQuery(question, variant, ad, size)
	var q Query
	if q.Read(packet) != OK {
		return // a question nobody is answered
	}
	reply := a.AppendReply(nil, &q, terms)
	if limit := q.limit(terms); len(reply) > limit {
		t.Fatalf("%d octets, limit %d", len(reply), limit)
	}
	n := headerLen + len(question)
	if !bytes.Equal(reply[headerLen:n], packet[headerLen:n]) || !bytes.Equal(reply[:2], packet[:2]) {
		t.Fatalf("question or ID is not the client's:\n%x\n%x", packet, reply)
	}
	if !whole(reply) {
		t.Fatalf("reply is not whole: %x", reply)
	}
	if oracle == nil {
		return
	}
	var m dns.Msg
	if err := m.Unpack(reply); err != nil {
		t.Fatalf("the library refuses %x: %v", reply, err)
	}
	compareReply(t, &m, oracle, &q, terms)
}

// clientQuery builds a query with the question in mixed case.
func clientQuery(question []byte, variant Variant, ad bool, size uint16) []byte {
	b := []byte{0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	if variant&CD != 0 {
		b[3] |= flagCD
	}
	if ad {
		b[3] |= flagAD
	}
	at := len(b)
	b = append(b, question...)
	for i := at; i < len(b)-4; i += int(b[i]) + 1 { // capitals at the odd places of a label
		for k := i + 1; k <= i+int(b[i]); k += 2 {
			if 'a' <= b[k] && b[k] <= 'z' {
				b[k] -= 'a' - 'A'
			}
		}
	}
	if size > 0 || variant&DO != 0 {
		b[11] = 1
		b = append(b, 0, 0, TypeOPT, byte(size>>8), byte(size), 0, 0, byte(variant&DO)<<7, 0, 0, 0)
	}
	return b
}

func compareReply(t *testing.T, m, oracle *dns.Msg, q *Query, terms Terms) {
	t.Helper()
	if !m.Response || !m.RecursionAvailable || m.Zero || m.Opcode != dns.OpcodeQuery {
		t.Fatalf("flags %v", &m.MsgHdr)
	}
	if m.AuthenticatedData && (!oracle.AuthenticatedData || q.flags&flagAD == 0 && !q.DO()) {
		t.Fatal("AD out of nothing")
	}
	opt := m.IsEdns0()
	if (opt != nil) != q.EDNS {
		t.Fatalf("OPT in the reply: %v, in the query: %v", opt, q.EDNS)
	}
	if opt != nil && (opt.Do() != q.DO() || opt.Version() != 0) {
		t.Fatalf("OPT %v", opt)
	}
	if oracle.Truncated {
		if !m.Truncated {
			t.Fatal("TC lost")
		}
		return
	}
	want := [3][]string{texts(oracle.Answer, q, terms), texts(oracle.Ns, q, terms), texts(oracle.Extra, q, terms)}
	got := [3][]string{texts(m.Answer, nil, Terms{}), texts(m.Ns, nil, Terms{}), texts(m.Extra, nil, Terms{})}
	missing := false
	for i := range want {
		if terms.Rotate != 0 && len(want[i]) == len(got[i]) {
			slices.Sort(want[i])
			slices.Sort(got[i])
		}
		if len(got[i]) > len(want[i]) || missing && len(got[i]) > 0 {
			t.Fatalf("section %d: %v\nwant %v", i, got[i], want[i])
		}
		if len(got[i]) < len(want[i]) {
			missing = true
			if terms.Rotate != 0 {
				continue
			}
		}
		if !slices.Equal(got[i], want[i][:len(got[i])]) {
			t.Fatalf("section %d: %v\nwant %v", i, got[i], want[i])
		}
	}
	needed := len(got[0]) < len(want[0]) || len(got[1]) < len(want[1])
	if m.Truncated != needed {
		t.Fatalf("TC %v with %d+%d of %d+%d records", m.Truncated, len(got[0]), len(got[1]), len(want[0]), len(want[1]))
	}
}

// texts prints records without OPT. With q it prints them as the client of q should see
// them: without DNSSEC records it did not ask for, and aged.
func texts(rrs []dns.RR, q *Query, terms Terms) []string {
	var out []string
	for _, rr := range rrs {
		h := rr.Header()
		switch h.Rrtype {
		case dns.TypeOPT, dns.TypeTSIG:
			continue
		case dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3:
			if q != nil && !q.DO() && q.Type != h.Rrtype && q.Type != TypeANY {
				continue
			}
		}
		if q != nil {
			if h.Ttl>>31 != 0 {
				h.Ttl = 0
			}
			aged := h.Ttl - min(h.Ttl, terms.Age)
			rr = dns.Copy(rr)
			rr.Header().Ttl = aged
		}
		out = append(out, strings.Map(asciiLower, rr.String()))
	}
	return out
}

func replySeeds(t testing.TB) [][]byte {
	t.Helper()
	var out [][]byte
	add := func(compress bool, name string, qtype uint16, sections ...[]string) {
		m := new(dns.Msg)
		m.SetQuestion(name, qtype)
		m.Response, m.RecursionAvailable, m.AuthenticatedData, m.Compress = true, true, true, compress
		for i, s := range sections {
			for _, text := range s {
				rr, err := dns.NewRR(text)
				if err != nil {
					t.Fatal(err)
				}
				switch i {
				case 0:
					m.Answer = append(m.Answer, rr)
				case 1:
					m.Ns = append(m.Ns, rr)
				default:
					m.Extra = append(m.Extra, rr)
				}
			}
		}
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
		m.SetEdns0(1232, true)
		if b, err = m.Pack(); err == nil {
			out = append(out, b)
		}
	}
	for _, compress := range []bool{true, false} {
		add(compress, "www.example.test.", dns.TypeA, []string{"www.example.test. 300 IN CNAME lb.example.test.",
			"lb.example.test. 60 IN A 192.0.2.1", "lb.example.test. 60 IN A 192.0.2.2", "lb.example.test. 60 IN A 192.0.2.3",
			"lb.example.test. 60 IN RRSIG A 8 3 60 20300101000000 20200101000000 1 example.test. AAAA"},
			[]string{"example.test. 600 IN NS ns.example.test."}, []string{"ns.example.test. 600 IN A 192.0.2.53"})
		add(compress, "gone.example.test.", dns.TypeAAAA, nil,
			[]string{"example.test. 600 IN SOA ns.example.test. h.example.test. 1 2 3 4 60", "example.test. 60 IN NSEC a.example.test. A"})
		add(compress, "_http._tcp.web.svc.cluster.local.", dns.TypeSRV,
			[]string{"_http._tcp.web.svc.cluster.local. 30 IN SRV 0 50 80 a.web.svc.cluster.local.", "_http._tcp.web.svc.cluster.local. 30 IN SRV 0 50 80 b.web.svc.cluster.local."},
			nil, []string{"a.web.svc.cluster.local. 30 IN A 10.0.0.1", "b.web.svc.cluster.local. 30 IN A 10.0.0.2"})
		add(compress, "example.test.", dns.TypeMX, []string{"example.test. 4000000000 IN MX 10 mx.example.test."})
		add(compress, "example.test.", dns.TypeANY, []string{"example.test. 5 IN TXT \"a\" \"b\"", "example.test. 5 IN NAPTR 1 1 \"u\" \"sip\" \"!x!y!\" .", "example.test. 0 IN HTTPS 1 . alpn=h2"})
		add(compress, ".", dns.TypeNS, []string{". 518400 IN NS a.root-servers.test.", ". 518400 IN NS b.root-servers.test."})
		var many []string
		for i := range 120 {
			many = append(many, "big.example.test. 30 IN A 192.0.2."+string(rune('0'+i%10)))
		}
		add(compress, "big.example.test.", dns.TypeA, many)
	}
	return out
}
