package resolve

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

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
