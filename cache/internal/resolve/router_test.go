package resolve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstreamFunc is an upstream made of a function from message to message. A nil reply is
// an error.
type upstreamFunc func(q *dns.Msg) *dns.Msg

func (f upstreamFunc) Exchange(_ context.Context, query []byte) ([]byte, error) {
	var q dns.Msg
	if err := q.Unpack(query); err != nil {
		return nil, err
	}
	m := f(&q)
	if m == nil {
		return nil, errors.New("no reply")
	}
	return m.Pack()
}

// answers replies with the records in texts, compressed.
func answers(t testing.TB, texts ...string) upstreamFunc {
	return func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg)
		m.SetReply(q)
		m.Compress = true
		for _, text := range texts {
			rr, err := dns.NewRR(text)
			if err != nil {
				t.Error(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		return m
	}
}

func newTestZone(t testing.TB, change func(*ZoneConfig), up Upstream) *Zone {
	t.Helper()
	cfg := ZoneConfig{Names: []string{"."}, Store: store.New(store.Config{}), Routes: []Route{{From: ".", Upstream: up}}}
	if change != nil {
		change(&cfg)
	}
	z, err := NewZone(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Close)
	return z
}

func newTestRouter(t testing.TB, change func(*ZoneConfig), up Upstream) *Router {
	t.Helper()
	return NewRouter(RouterConfig{Server: "dns://test", Zones: []*Zone{newTestZone(t, change, up)}, Metrics: NewMetrics(nil)})
}

// A block with nobody to ask says so like one that is not there, whoever comes by which way.
func TestEmptyZoneRefuses(t *testing.T) {
	r := newTestRouter(t, func(c *ZoneConfig) { c.Routes = nil }, nil)
	query := packedQuery("www.example.test.", dns.TypeA, true, false)
	hit, ok := r.Hit(make([]byte, 0, 4096), query, client(wire.UDP))
	for _, reply := range [][]byte{hit, r.Resolve(t.Context(), make([]byte, 0, 4096), query, client(wire.TCP))} {
		var m dns.Msg
		if err := m.Unpack(reply); err != nil || !ok || m.Rcode != dns.RcodeRefused {
			t.Errorf("%v, error %v", &m, err)
		}
	}
}

func client(transport wire.Transport) wire.Origin {
	return wire.Origin{Client: netip.MustParseAddrPort("10.0.0.1:4000"), Transport: transport}
}

// ask asks r and unpacks the reply.
func ask(t testing.TB, r *Router, query []byte, from wire.Origin) *dns.Msg {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(answer(t.Context(), r, query, from)); err != nil {
		t.Fatal(err)
	}
	return &m
}

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

func packedMsg(t testing.TB, name string, qtype uint16, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
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

// TestP18_ReplyToAnotherQuestion: the room forward drops it; if one comes through all
// the same it is neither delivered nor stored.
func TestP18_ReplyToAnotherQuestion(t *testing.T) {
	for what, question := range map[string]dns.Question{
		"name":  {Name: "victim.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET},
		"type":  {Name: "attacker.test.", Qtype: dns.TypeAAAA, Qclass: dns.ClassINET},
		"class": {Name: "attacker.test.", Qtype: dns.TypeA, Qclass: dns.ClassCHAOS},
	} {
		s := store.New(store.Config{})
		r := newTestRouter(t, func(c *ZoneConfig) { c.Store, c.Cache.ServFail = s, -1 }, upstreamFunc(func(q *dns.Msg) *dns.Msg {
			m := answers(t, "victim.test. 60 IN A 192.0.2.66")(q)
			m.Question[0] = question
			return m
		}))
		m := ask(t, r, packedQuery("attacker.test.", dns.TypeA, false, false), client(wire.UDP))
		if m.Rcode != dns.RcodeServerFailure || len(m.Answer) > 0 {
			t.Errorf("other %s: delivered %v", what, m)
		}
		if n := s.Len(store.Success) + s.Len(store.Denial); n > 0 {
			t.Errorf("other %s: stored", what)
		}
		if n := r.sites[0].zone.extra.drops.Load(); n != 1 {
			t.Errorf("other %s: %d drops counted", what, n)
		}
	}
}

// TestP19_EntriesNeverChange: under the race detector, readers of every sort while the
// entry is renewed again and again.
func TestP19_EntriesNeverChange(t *testing.T) {
	texts := []string{"hot.test. 200 IN CNAME a.test.", "a.test. 150 IN CNAME b.test."}
	for i := range 40 {
		texts = append(texts, fmt.Sprintf("b.test. 100 IN A 192.0.2.%d", i))
	}
	r := newTestRouter(t, func(c *ZoneConfig) {
		c.Cache.Prefetch = PrefetchConfig{Amount: 1, Percent: 90}
		c.LoadBalance = true
	}, answers(t, texts...))
	plain := packedQuery("hot.test.", dns.TypeA, false, false)
	ask(t, r, plain, client(wire.TCP))
	s := r.sites[0].zone.store
	var q wire.Query
	q.Read(plain)
	entry := s.Get(q.Question(), 0)
	before := entry.AppendReply(nil, &q, wire.Terms{Transport: wire.TCP})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			query := plain
			transport := wire.UDP
			switch i % 4 {
			case 0:
				query = packedQuery("HOT.test.", dns.TypeA, true, true)
			case 1:
				query = packedQuery("hOt.tEst.", dns.TypeA, true, false)
			case 2:
				transport = wire.TCP
			}
			buf := make([]byte, 65535)
			for range 300 {
				if i == 15 {
					// Replaced under the readers' feet.
					e, _ := store.NewEntry(0)
					e.Answer = entry.Answer
					s.Put(e, store.Success, s.Now(), 100*time.Second, nil)
				}
				reply, ok := r.Hit(buf, query, client(transport))
				if !ok {
					reply = r.Resolve(t.Context(), buf, query, client(transport))
				}
				var m dns.Msg
				if err := m.Unpack(reply); err != nil || !m.Truncated && len(m.Answer) != 42 {
					t.Errorf("%v: %d records", err, len(m.Answer))
					return
				}
				for _, rr := range m.Answer {
					if rr.Header().Ttl > 200 || rr.Header().Ttl < 90 {
						t.Errorf("TTL drifted: %v", rr)
					}
				}
			}
		})
	}
	wg.Wait()
	if after := entry.AppendReply(nil, &q, wire.Terms{Transport: wire.TCP}); !bytes.Equal(before, after) {
		t.Error("the entry has changed")
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

// TestP21_P23_NothingGoesUpstream: what is no question stops at the door.
func TestP21_P23_NothingGoesUpstream(t *testing.T) {
	r := newTestRouter(t, nil, upstreamFunc(func(q *dns.Msg) *dns.Msg {
		t.Errorf("forwarded %v", q)
		return nil
	}))
	base := packedQuery("example.test.", dns.TypeA, false, false)
	for _, flags := range []byte{0x81, 0x85, 0x88, 0xf8} {
		q := bytes.Clone(base)
		q[2] = flags
		if reply := answer(t.Context(), r, q, client(wire.UDP)); len(reply) > 0 {
			t.Errorf("flags %#x: answered", flags)
		}
	}
	for n := range 12 {
		if reply := answer(t.Context(), r, base[:n], client(wire.UDP)); len(reply) > 0 {
			t.Errorf("%d octets: answered", n)
		}
	}
	for opcode := byte(1); opcode < 16; opcode++ {
		q := bytes.Clone(base)
		q[2] = opcode << 3
		reply := answer(t.Context(), r, q, client(wire.TCP))
		if len(reply) < 12 || reply[2]&0x80 == 0 || reply[2]>>3&15 != opcode || reply[3]&15 != dns.RcodeNotImplemented {
			t.Errorf("opcode %d: %x", opcode, reply)
		}
	}
}

func TestP25_LongAndOddNames(t *testing.T) {
	label := func(c string, n int) string {
		var b bytes.Buffer
		for range n {
			b.WriteString(c)
		}
		return b.String() + "."
	}
	var asked atomic.Int32
	r := newTestRouter(t, nil, upstreamFunc(func(q *dns.Msg) *dns.Msg {
		asked.Add(1)
		m := new(dns.Msg)
		m.SetReply(q)
		m.Compress = true
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: 1, Ttl: 60}, A: []byte{192, 0, 2, 1}}}
		return m
	}))
	for _, name := range []string{
		label("a", 63) + label("a", 63) + label("a", 63) + label("a", 61),
		label(`\000`, 63) + label(`\000`, 63) + label(`\000`, 63) + label(`\000`, 61),
		label(`\255`, 63) + label(`\255`, 63) + label(`\255`, 63) + label(`\255`, 61),
		`a\.\000\255.test.`, `a\ b.test.`, "*.test.", "_sip._tcp.example.test.", ".",
	} {
		before := asked.Load()
		for range 2 {
			if m := ask(t, r, packedQuery(name, dns.TypeA, true, false), client(wire.UDP)); len(m.Answer) != 1 || m.Question[0].Name != name {
				t.Errorf("%q: %v", name, m)
			}
		}
		if n := asked.Load() - before; n != 1 {
			t.Errorf("%q: asked upstream %d times", name, n)
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

// TestU04_InflightLimit: past it answers come at once, stale ones if there are any.
func TestU04_InflightLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRouter(t, func(c *ZoneConfig) { c.MaxInflight, c.Cache.Stale.For = 2, time.Hour }, upstreamFunc(func(q *dns.Msg) *dns.Msg {
			if q.Question[0].Name != "hot.test." {
				time.Sleep(time.Second)
			}
			return answers(t, q.Question[0].Name+" 5 IN A 192.0.2.1")(q)
		}))
		query := func(name string) []byte { return packedQuery(name, dns.TypeA, false, false) }
		ask(t, r, query("hot.test."), client(wire.UDP))
		time.Sleep(10 * time.Second)
		var busy atomic.Int32
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				start := time.Now()
				if m := ask(t, r, query(fmt.Sprintf("n%d.test.", i)), client(wire.UDP)); m.Rcode == dns.RcodeServerFailure {
					busy.Add(1)
					if d := time.Since(start); d > 0 {
						t.Errorf("refused after %s", d)
					}
				}
			})
		}
		synctest.Wait()
		if m := ask(t, r, query("hot.test."), client(wire.UDP)); len(m.Answer) != 1 {
			t.Errorf("stale answer: %v", m)
		}
		wg.Wait()
		if n := busy.Load(); n != 8 {
			t.Errorf("%d of 10 refused, want 8", n)
		}
		time.Sleep(500 * time.Millisecond)
		for i := range 10 {
			if m := ask(t, r, query(fmt.Sprintf("n%d.test.", i)), client(wire.UDP)); m.Rcode != dns.RcodeSuccess {
				t.Errorf("n%d later: %v", i, m)
			}
		}
	})
}

// TestC06_LongestZoneLabelByLabel: whatever the order, whatever the letter case.
func TestC06_LongestZoneLabelByLabel(t *testing.T) {
	zone := func(names []string, addr string) *Zone {
		return newTestZone(t, func(c *ZoneConfig) { c.Names = names }, upstreamFunc(func(q *dns.Msg) *dns.Msg {
			return answers(t, q.Question[0].Name+" 60 IN A "+addr)(q)
		}))
	}
	zones := []*Zone{
		zone([]string{"local", "other.test."}, "192.0.2.2"), zone([]string{"Cluster.LOCAL"}, "192.0.2.3"),
		zone([]string{"224.28.172.in-addr.arpa", "225.28.172.in-addr.arpa"}, "192.0.2.4"),
	}
	withRoot := append([]*Zone{zone([]string{"."}, "192.0.2.1")}, zones...)
	for name, want := range map[string]string{
		"a.cluster.local.": "192.0.2.3", "CLUSTER.local.": "192.0.2.3", "notcluster.local.": "192.0.2.2",
		"local.": "192.0.2.2", "x.OTHER.test.": "192.0.2.2", "another.test.": "192.0.2.1", ".": "192.0.2.1",
		"1.225.28.172.in-addr.arpa.": "192.0.2.4", "1.226.28.172.in-addr.arpa.": "192.0.2.1",
		`x\007cluster.local.`: "192.0.2.2",
	} {
		r := NewRouter(RouterConfig{Zones: withRoot})
		m := ask(t, r, packedQuery(name, dns.TypeA, false, false), client(wire.UDP))
		if len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != want {
			t.Errorf("%s: %v, want %s", name, m.Answer, want)
		}
	}
	r := NewRouter(RouterConfig{Zones: zones})
	if m := ask(t, r, packedQuery("elsewhere.test.", dns.TypeA, true, false), client(wire.UDP)); m.Rcode != dns.RcodeRefused {
		t.Errorf("outside of all zones: %v", m)
	}
}

// TestDSBelongsToTheParent: RFC 4035 section 2.4.
func TestDSBelongsToTheParent(t *testing.T) {
	asked := make(map[string]string)
	zone := func(name string) *Zone {
		return newTestZone(t, func(c *ZoneConfig) { c.Names = []string{name} }, upstreamFunc(func(q *dns.Msg) *dns.Msg {
			asked[q.Question[0].Name] = name
			return answers(t)(q)
		}))
	}
	r := NewRouter(RouterConfig{Zones: []*Zone{zone("child.test"), zone("test")}})
	for name, want := range map[string]string{"child.test.": "test", "x.child.test.": "child.test", "test.": "test"} {
		ask(t, r, packedQuery(name, dns.TypeDS, false, false), client(wire.UDP))
		if asked[name] != want {
			t.Errorf("DS of %s asked in %q, want %q", name, asked[name], want)
		}
	}
}

// TestNonce: the probe's question is answered in memory, by this router and no upstream.
func TestNonce(t *testing.T) {
	z := newTestZone(t, nil, upstreamFunc(func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg)
		return m.SetRcode(q, dns.RcodeRefused)
	}))
	r := NewRouter(RouterConfig{Zones: []*Zone{z}, Nonce: "abc.probe"})
	probe := func(name string, class uint16) *dns.Msg {
		return ask(t, r, packedMsg(t, name, dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = class }), client(wire.TCP))
	}
	if m := probe("ABC.probe.", dns.ClassCHAOS); m.Rcode != 0 || len(m.Answer) != 1 || len(m.Answer[0].(*dns.TXT).Txt) != 1 {
		t.Errorf("nonce: %v", m)
	}
	for _, m := range []*dns.Msg{probe("abc.probe.", dns.ClassINET), probe("abd.probe.", dns.ClassCHAOS)} {
		if m.Rcode != dns.RcodeRefused {
			t.Errorf("answered %v", m)
		}
	}
	if reply, ok := r.Hit(make([]byte, 4096), packedMsg(t, "abc.probe.", dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), client(wire.UDP)); !ok || len(reply) == 0 {
		t.Error("not answered in Hit")
	}
}

// TestHitAllocatesNothing covers what a hit can look like.
func TestHitAllocatesNothing(t *testing.T) {
	r := newTestRouter(t, func(c *ZoneConfig) {
		c.Cache.Prefetch.Amount = 1000000
		c.SearchCut = []string{"cluster.local"}
	}, upstreamFunc(func(q *dns.Msg) *dns.Msg {
		switch {
		case dns.IsSubDomain("cluster.local.", q.Question[0].Name):
			m := new(dns.Msg)
			m.SetRcode(q, dns.RcodeNameError)
			m.Compress = true
			soa, _ := dns.NewRR("cluster.local. 600 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 2 3 4 600")
			m.Ns = []dns.RR{soa}
			return m
		default:
			return answers(t, q.Question[0].Name+" 600 IN CNAME lb.test.", "lb.test. 600 IN A 192.0.2.1", "lb.test. 600 IN A 192.0.2.2")(q)
		}
	}))
	buf := make([]byte, 4096)
	for what, q := range map[string][]byte{
		"plain":      packedQuery("www.example.test.", dns.TypeA, false, false),
		"edns":       packedQuery("www.example.test.", dns.TypeA, true, false),
		"do":         packedQuery("www.example.test.", dns.TypeA, true, true),
		"mixed case": packedQuery("wWw.eXample.tEst.", dns.TypeA, true, false),
		"nxdomain":   packedQuery("gone.cluster.local.", dns.TypeA, true, false),
		"cut":        packedQuery("www.example.com.team-a.svc.cluster.local.", dns.TypeA, true, false),
		"badvers": packedMsg(t, "www.example.test.", dns.TypeA, func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().SetVersion(1)
		}),
	} {
		answer(t.Context(), r, q, client(wire.UDP))
		if what == "cut" { // another name, so that it is the cut that answers
			q = packedQuery("api.other.com.team-a.svc.cluster.local.", dns.TypeAAAA, true, false)
		}
		from := client(wire.UDP)
		if n := testing.AllocsPerRun(100, func() {
			if _, ok := r.Hit(buf, q, from); !ok {
				t.Fatalf("%s: no hit", what)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

// TestCloseEndsBackgroundWork: a refresh that hangs ends with the zone, and none begins
// after; whoever waits for the same question gets an answer still.
func TestCloseEndsBackgroundWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newScriptUpstream()
		up.set(t, []string{"hot.test.", "A"}, []string{"answer hot.test. 5 IN A 192.0.2.1"})
		r := newTestRouter(t, func(c *ZoneConfig) { c.Cache.Stale.For = time.Hour }, up)
		q := packedQuery("hot.test.", dns.TypeA, false, false)
		ask(t, r, q, client(wire.UDP))
		time.Sleep(10 * time.Second)
		up.set(t, []string{"hot.test.", "A"}, []string{"hang"})
		ask(t, r, q, client(wire.UDP))
		synctest.Wait()
		start := time.Now()
		r.Close()
		if d := time.Since(start); d > 0 {
			t.Errorf("Close took %s", d)
		}
		up.asked()
		if m := ask(t, r, q, client(wire.UDP)); len(m.Answer) != 1 {
			t.Errorf("after Close: %v", m)
		}
		synctest.Wait()
		if asked := up.asked(); asked != "" {
			t.Errorf("after Close: %s", asked)
		}
	})
}

// TestWaiterOutlivesLeader: a client that goes away does not take the answer with it.
func TestWaiterOutlivesLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newScriptUpstream()
		up.set(t, []string{"slow.test.", "A", "delay=1s"}, []string{"answer slow.test. 60 IN A 192.0.2.1"})
		r := newTestRouter(t, nil, up)
		q := packedQuery("slow.test.", dns.TypeA, false, false)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.Resolve(ctx, make([]byte, 4096), q, client(wire.TCP)) })
		synctest.Wait()
		wg.Go(func() {
			if m := ask(t, r, q, client(wire.UDP)); len(m.Answer) != 1 {
				t.Errorf("the one who waited gets %v", m)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
	})
}

// TestSearchCutThousandNames: 1,000 outside names with the search list of one namespace
// cost cluster DNS at most three questions a top-level label, with the same answers.
func TestSearchCutThousandNames(t *testing.T) {
	tlds := []string{"com", "org", "net", "io", "dev"}
	var asked atomic.Int32
	up := upstreamFunc(func(q *dns.Msg) *dns.Msg {
		asked.Add(1)
		m := new(dns.Msg)
		m.SetRcode(q, dns.RcodeNameError)
		m.Compress = true
		soa, _ := dns.NewRR("cluster.local. 600 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 2 3 4 600")
		m.Ns = []dns.RR{soa}
		return m
	})
	run := func(cut []string) (replies [][]byte, questions int32) {
		asked.Store(0)
		r := newTestRouter(t, func(c *ZoneConfig) {
			c.Names, c.SearchCut = []string{"cluster.local"}, cut
			c.Store = store.New(store.Config{Denial: 20000})
		}, up)
		for i := range 1000 {
			for _, search := range []string{"team-a.svc.cluster.local.", "svc.cluster.local.", "cluster.local."} {
				for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
					name := fmt.Sprintf("www.name%d.%s.%s", i, tlds[i%len(tlds)], search)
					m := ask(t, r, packedQuery(name, qtype, false, false), client(wire.UDP))
					for _, rr := range m.Ns {
						rr.Header().Ttl = 0 // time passes while the test runs
					}
					b, err := m.Pack()
					if err != nil {
						t.Fatal(err)
					}
					replies = append(replies, b[2:]) // without the ID
				}
			}
		}
		return replies, asked.Load()
	}
	with, few := run([]string{"cluster.local"})
	without, many := run(nil)
	for i := range with {
		if !bytes.Equal(with[i], without[i]) {
			t.Fatalf("reply %d differs:\n%x\n%x", i, with[i], without[i])
		}
	}
	if int(few) > 3*len(tlds) || many != 6000 {
		t.Errorf("%d questions with the cut, %d without", few, many)
	}
}
