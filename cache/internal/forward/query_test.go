package forward

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// Every cut of a message is seen, and no whole one is taken for cut.
func TestWhole(t *testing.T) {
	t.Parallel()
	m := new(dns.Msg)
	m.SetQuestion("www.example.test.", dns.TypeA)
	m.Response, m.Compress = true, true
	for _, s := range []string{
		"www.example.test. 30 IN CNAME a.b.c.example.test.", "a.b.c.example.test. 30 IN A 192.0.2.1",
		"example.test. 30 IN SOA ns.example.test. host.example.test. 1 2 3 4 5", `txt.example.test. 30 IN TXT "a" "b"`,
	} {
		rr, err := dns.NewRR(s)
		if err != nil {
			t.Fatal(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	m.SetEdns0(1232, true)
	raw, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	q, ok := readQuery(raw)
	whole := func(reply []byte) bool {
		_, _, ok := wire.Check(q.question(), reply)
		return ok
	}
	if !ok || !whole(raw) || !whole(append(raw, 0)) {
		t.Error("a whole message is taken for cut")
	}
	for n := q.end; n < len(raw); n++ {
		if whole(raw[:n]) {
			t.Errorf("cut at %d of %d octets and not seen", n, len(raw))
		}
	}
	for at, octet := range map[int]byte{7: 9, 9: 1, 11: 2, q.end: 0x80} {
		bent := append([]byte(nil), raw...)
		bent[at] = octet
		if whole(bent) {
			t.Errorf("octet %d set to %d and not seen", at, octet)
		}
	}
}

func TestReadQuery(t *testing.T) {
	t.Parallel()
	good := packed(t, "www.example.test")
	for name, msg := range map[string][]byte{
		"empty":     {},
		"header":    good[:12],
		"cut name":  good[:20],
		"cut type":  good[:32],
		"pointer":   append(append([]byte(nil), good[:12]...), 0xc0, 12, 0, 1, 0, 1),
		"two":       append([]byte{0, 0, 1, 0, 0, 2}, good[6:]...),
		"no number": append([]byte{0, 0, 1, 0, 0, 0}, good[6:]...),
	} {
		if _, ok := readQuery(msg); ok {
			t.Errorf("%s: read", name)
		}
	}
	if q, ok := readQuery(good); !ok || q.end != 12+18+4 || q.qtype() != dns.TypeA {
		t.Errorf("%v %v", q, ok)
	}
}

// Reading what upstreams send never panics, whatever it is.
func FuzzReply(f *testing.F) {
	good := packed(f, "www.example.test")
	f.Add(good, good)
	f.Fuzz(func(t *testing.T, query, reply []byte) {
		q, ok := readQuery(query)
		if !ok {
			return
		}
		switch {
		case q.answeredBy(reply):
			wire.Check(q.question(), reply)
			if r, ok := readQuery(q.truncated(reply)); !ok || !q.answeredBy(r.msg) {
				t.Errorf("truncated form %x of %x", r.msg, reply)
			}
		case q.refusedBy(reply):
			if !q.answeredBy(q.bare(reply)) {
				t.Errorf("bare form of %x", reply)
			}
		}
	})
}
