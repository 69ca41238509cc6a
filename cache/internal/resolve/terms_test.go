package resolve

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestP06_BigAnswerPerClientBuffer(t *testing.T) {
	const total = 100
	for _, rtype := range []string{"SRV", "TXT", "A"} {
		var texts []string
		for i := range total {
			texts = append(texts, map[string]string{
				"SRV": fmt.Sprintf("big.test. 60 IN SRV 0 0 80 host-%03d-pppppppppppppppppp.srv.test.", i),
				"TXT": fmt.Sprintf("big.test. 60 IN TXT \"record number %03d\"", i),
				"A":   fmt.Sprintf("big.test. 60 IN A 192.0.2.%d", i),
			}[rtype])
		}
		qtype := dns.StringToType[rtype]
		r := newTestRouter(t, func(c *ZoneConfig) { c.BufSize = 4096 }, answers(t, texts...))
		// Filled over TCP, then by a client with a large buffer, then smaller ones; in
		// the end TCP gets everything again.
		for _, c := range []struct {
			transport   wire.Transport
			edns, limit int
		}{{wire.TCP, 0, 65535}, {wire.UDP, 4096, 4096}, {wire.UDP, 0, 512}, {wire.UDP, 1232, 1232}, {wire.UDP, 100, 512},
			{wire.UDP, 512, 512}, {wire.UDP, 65535, 4096}, {wire.TCP, 512, 65535}} {
			q := packedQuery("big.test.", qtype, false, false)
			if c.edns > 0 {
				q = packedMsg(t, "big.test.", qtype, func(m *dns.Msg) { m.SetEdns0(uint16(c.edns), false) })
			}
			raw := answer(t.Context(), r, q, client(c.transport))
			var m dns.Msg
			if err := m.Unpack(raw); err != nil {
				t.Fatal(err)
			}
			if len(raw) > c.limit {
				t.Errorf("%s, buffer %d: %d octets", rtype, c.edns, len(raw))
			}
			if m.Truncated != (len(m.Answer) < total) {
				t.Errorf("%s, buffer %d: TC=%v with %d records", rtype, c.edns, m.Truncated, len(m.Answer))
			}
			if c.transport == wire.TCP && len(m.Answer) != total {
				t.Errorf("%s: TCP gets %d records", rtype, len(m.Answer))
			}
			if (m.IsEdns0() != nil) != (c.edns > 0) {
				t.Errorf("%s, buffer %d: OPT %v", rtype, c.edns, m.IsEdns0())
			}
		}
	}
}

// TestP06_OurOwnLimit: without bufsize a client gets 1232 octets whatever it offers.
func TestP06_OurOwnLimit(t *testing.T) {
	var texts []string
	for i := range 100 {
		texts = append(texts, fmt.Sprintf("big.test. 60 IN A 192.0.2.%d", i))
	}
	r := newTestRouter(t, nil, answers(t, texts...))
	q := packedMsg(t, "big.test.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(4096, false) })
	if raw := answer(t.Context(), r, q, client(wire.UDP)); len(raw) > wire.EDNSSize || raw[2]&2 == 0 {
		t.Errorf("%d octets, flags %x", len(raw), raw[2:4])
	}
}

// TestP08_P09_OptionsOfClientsGoNowhere: client subnet, cookie, padding and keepalive
// neither reach the upstream nor the key nor a reply.
func TestP08_P09_OptionsOfClientsGoNowhere(t *testing.T) {
	var asked atomic.Int32
	r := newTestRouter(t, nil, upstreamFunc(func(q *dns.Msg) *dns.Msg {
		asked.Add(1)
		if n := len(q.IsEdns0().Option); n > 0 {
			t.Errorf("%d options reach the upstream", n)
		}
		m := answers(t, "example.test. 60 IN A 192.0.2.1")(q)
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{
			&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708090a0b0c0d0e0f10"},
			&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, SourceScope: 24, Address: []byte{198, 51, 100, 0}},
		}
		return m
	}))
	for _, option := range []dns.EDNS0{
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{198, 51, 100, 0}},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{203, 0, 113, 0}},
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "1112131415161718"},
		&dns.EDNS0_PADDING{Padding: make([]byte, 20)},
		&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE},
		&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")},
	} {
		q := packedMsg(t, "example.test.", dns.TypeA, func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{option}
		})
		m := ask(t, r, q, client(wire.UDP))
		if len(m.Answer) != 1 || len(m.IsEdns0().Option) > 0 {
			t.Errorf("with option %d: %v", option.Option(), m)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked upstream %d times", n)
	}
}

// TestP11_BadVersionBeforeTheCache: also for a name that is cached, and never upstream.
func TestP11_BadVersionBeforeTheCache(t *testing.T) {
	var asked atomic.Int32
	r := newTestRouter(t, nil, upstreamFunc(func(q *dns.Msg) *dns.Msg {
		asked.Add(1)
		return answers(t, "example.test. 60 IN A 192.0.2.1")(q)
	}))
	ask(t, r, packedQuery("example.test.", dns.TypeA, false, false), client(wire.UDP))
	for _, name := range []string{"example.test.", "cold.test."} {
		for _, version := range []uint8{1, 100, 255} {
			m := ask(t, r, packedMsg(t, name, dns.TypeA, func(m *dns.Msg) {
				m.SetEdns0(1232, true)
				m.IsEdns0().SetVersion(version)
			}), client(wire.UDP))
			if m.Rcode != dns.RcodeBadVers || m.IsEdns0().Version() != 0 || len(m.Question) != 1 || len(m.Answer) > 0 {
				t.Errorf("%s version %d: %v", name, version, m)
			}
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked upstream %d times", n)
	}
}

func TestP20_LetterCaseIsTheClients(t *testing.T) {
	var asked atomic.Int32
	up := upstreamFunc(func(q *dns.Msg) *dns.Msg {
		asked.Add(1)
		if q.Question[0].Name != "example.test." {
			t.Errorf("upstream is asked for %q", q.Question[0].Name)
		}
		m := answers(t, "EXAMPLE.TEST. 60 IN CNAME lb.example.test.", "lb.example.test. 60 IN A 192.0.2.1")(q)
		m.Question[0].Name = "EXAMPLE.TEST." // and the upstream has a mind of its own
		return m
	})
	r := newTestRouter(t, nil, up)
	for _, name := range []string{"eXaMple.tEsT.", "example.test.", "EXAMPLE.test."} {
		q := packedQuery(name, dns.TypeA, false, false)
		raw := answer(t.Context(), r, q, client(wire.UDP))
		if !bytes.Equal(raw[12:12+18], q[12:12+18]) {
			t.Errorf("%s: question is %q", name, raw[12:30])
		}
		m := ask(t, r, q, client(wire.UDP))
		if m.Answer[0].Header().Name != name {
			t.Errorf("%s: owner is %s", name, m.Answer[0].Header().Name)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked upstream %d times", n)
	}
}

func TestP20_OnlyASCIILettersFold(t *testing.T) {
	r := newTestRouter(t, nil, upstreamFunc(func(q *dns.Msg) *dns.Msg {
		addr := map[string]string{`x\192.test.`: "192.0.2.1", `x\224.test.`: "192.0.2.2"}[q.Question[0].Name]
		return answers(t, q.Question[0].Name+" 60 IN A "+addr)(q)
	}))
	for name, want := range map[string]string{`x\192.test.`: "192.0.2.1", `x\224.test.`: "192.0.2.2"} {
		m := ask(t, r, packedQuery(name, dns.TypeA, false, false), client(wire.UDP))
		if got := m.Answer[0].(*dns.A).A.String(); got != want || m.Question[0].Name != name {
			t.Errorf("%s: %v", name, m)
		}
	}
}

func TestP31_ManyRecords(t *testing.T) {
	long := "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn.mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm.test."
	for _, compress := range []bool{true, false} {
		for _, n := range []int{80, 500, 3000} {
			if !compress && n > 500 {
				continue // does not fit into a message at all
			}
			r := newTestRouter(t, nil, upstreamFunc(func(q *dns.Msg) *dns.Msg {
				m := new(dns.Msg)
				m.SetReply(q)
				m.Compress = compress
				for i := range n {
					m.Answer = append(m.Answer, &dns.A{
						Hdr: dns.RR_Header{Name: long, Rrtype: dns.TypeA, Class: 1, Ttl: 60}, A: []byte{192, 0, byte(i >> 8), byte(i)},
					})
				}
				return m
			}))
			for range 2 {
				raw := answer(t.Context(), r, packedQuery(long, dns.TypeA, false, false), client(wire.TCP))
				var m dns.Msg
				if err := m.Unpack(raw); err != nil || len(m.Answer) != n || m.Truncated {
					t.Errorf("%d records, compressed %v: %v, %d over TCP", n, compress, err, len(m.Answer))
				}
				if want := 12 + len(long) + 5 + 16*n; len(raw) != want {
					t.Errorf("%d records: %d octets, %d when compressed", n, len(raw), want)
				}
				raw = answer(t.Context(), r, packedQuery(long, dns.TypeA, true, false), client(wire.UDP))
				if err := m.Unpack(raw); err != nil || len(raw) > 1232 || !m.Truncated {
					t.Errorf("%d records: %v, %d octets over UDP", n, err, len(raw))
				}
			}
		}
	}
}
