package resolve

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

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
