package resolve

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// localAnswers answers the questions it has records for, and denies those that it has the
// name of with an empty text.
type localAnswers map[string]string

func (l localAnswers) Answer(query []byte, _ wire.Origin) ([]byte, bool) {
	var q dns.Msg
	if q.Unpack(query) != nil {
		return nil, false
	}
	text, ok := l[q.Question[0].Name]
	if !ok {
		return nil, false
	}
	m := new(dns.Msg).SetReply(&q)
	m.Authoritative = true
	if text == "" {
		m.Rcode, text = dns.RcodeNameError, "cluster.local. 30 IN SOA ns.dns.cluster.local. h.cluster.local. 1 2 3 4 30"
	}
	rr, err := dns.NewRR(text)
	if err != nil {
		return nil, false
	}
	if m.Rcode == dns.RcodeNameError {
		m.Ns = append(m.Ns, rr)
	} else {
		m.Answer = append(m.Answer, rr)
	}
	b, err := m.Pack()
	return b, err == nil
}

// TestSearchCutChangesNoAnswer: with search_cut every name gets the answer that it gets
// without, whatever else the block says about it, on the first question and on those after
// it.
func TestSearchCutChangesNoAnswer(t *testing.T) {
	denying := func() *scriptUpstream {
		up := newScriptUpstream()
		up.set(t, []string{"*", "A"}, []string{"rcode NXDOMAIN", "authority cluster.local. 30 IN SOA ns.dns.cluster.local. h.cluster.local. 1 2 3 4 30"})
		return up
	}
	for _, tt := range []struct {
		name   string
		change func(c *ZoneConfig, up *scriptUpstream)
	}{
		{"hosts", func(c *ZoneConfig, _ *scriptUpstream) {
			c.Local = []Local{localAnswers{"db.corp.cluster.local.": "db.corp.cluster.local. 30 IN A 10.9.9.9"}}
		}},
		{"a template that denies the level", func(c *ZoneConfig, up *scriptUpstream) {
			c.Local = []Local{localAnswers{"corp.cluster.local.": ""}}
			up.set(t, []string{"db.corp.cluster.local.", "A"}, []string{"answer db.corp.cluster.local. 30 IN A 10.0.0.1"})
		}},
		{"rewrite of the name", func(c *ZoneConfig, up *scriptUpstream) {
			c.Rewrites = []Rewrite{{Match: RewriteExact, From: "db.corp.cluster.local.", To: "db.team-a.svc.cluster.local."}}
			up.set(t, []string{"db.team-a.svc.cluster.local.", "A"}, []string{"answer db.team-a.svc.cluster.local. 30 IN A 10.0.0.1"})
		}},
		{"rewrite of the level", func(c *ZoneConfig, up *scriptUpstream) {
			c.Rewrites = []Rewrite{{Match: RewriteExact, From: "corp.cluster.local.", To: "elsewhere.cluster.local."}}
			up.set(t, []string{"corp.cluster.local.", "A"}, []string{"answer corp.cluster.local. 30 IN A 10.0.0.2"})
			up.set(t, []string{"db.corp.cluster.local.", "A"}, []string{"answer db.corp.cluster.local. 30 IN A 10.0.0.1"})
		}},
		{"another forward for the name", func(c *ZoneConfig, _ *scriptUpstream) {
			other := newScriptUpstream()
			other.set(t, []string{"db.corp.cluster.local.", "A"}, []string{"answer db.corp.cluster.local. 30 IN A 10.0.0.1"})
			c.Routes = append([]Route{{From: "db.corp.cluster.local.", Upstream: other}}, c.Routes...)
		}},
		{"a forward that leaves the name out", func(c *ZoneConfig, _ *scriptUpstream) {
			c.Routes[0].Except = []string{"db.corp.cluster.local."}
			c.Last = localAnswers{"db.corp.cluster.local.": "db.corp.cluster.local. 30 IN A 10.9.9.9"}
		}},
		{"a level outside of the zone", func(c *ZoneConfig, up *scriptUpstream) {
			c.Names = []string{"db.corp.cluster.local"}
			up.set(t, []string{"db.corp.cluster.local.", "A"}, []string{"answer db.corp.cluster.local. 30 IN A 10.0.0.1"})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var said [2]string
			for i, cut := range [][]string{nil, {"cluster.local"}} {
				synctest.Test(t, func(t *testing.T) {
					up := denying()
					r := newTestRouter(t, func(c *ZoneConfig) {
						c.Names, c.SearchCut = []string{"cluster.local"}, cut
						tt.change(c, up)
					}, up)
					for _, name := range []string{"corp", "other.corp", "db.corp", "db.corp", "corp"} {
						m := ask(t, r, packedQuery(name+".cluster.local.", dns.TypeA, false, false), client(wire.UDP))
						said[i] += fmt.Sprintln(name, dns.RcodeToString[m.Rcode], m.Answer)
						time.Sleep(time.Second)
					}
				})
			}
			ttls := strings.NewReplacer("\t30\t", " ", "\t29\t", " ", "\t28\t", " ", "\t27\t", " ", "\t26\t", " ")
			if ttls.Replace(said[0]) != ttls.Replace(said[1]) {
				t.Errorf("without:\n%swith:\n%s", said[0], said[1])
			}
		})
	}
}

// TestSearchCutWithLocalAnswers: a name that no local answerer knows is still cut.
func TestSearchCutWithLocalAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newScriptUpstream()
		up.set(t, []string{"*", "A"}, []string{"rcode NXDOMAIN", "authority cluster.local. 30 IN SOA ns.dns.cluster.local. h.cluster.local. 1 2 3 4 30"})
		r := newTestRouter(t, func(c *ZoneConfig) {
			c.Names, c.SearchCut, c.Local = []string{"cluster.local"}, []string{"cluster.local"}, []Local{localAnswers{}}
		}, up)
		for i := range 3 {
			ask(t, r, packedQuery(fmt.Sprintf("www%d.com.cluster.local.", i), dns.TypeA, false, false), client(wire.UDP))
		}
		if got := up.asked(); got != "asked com.cluster.local. A\n" {
			t.Error(got)
		}
	})
}

// TestSearchCutRemembersFailures: a level that failed is not asked for again with each name
// (RFC 9520).
func TestSearchCutRemembersFailures(t *testing.T) {
	for _, line := range []string{"rcode SERVFAIL", "error connection refused"} {
		synctest.Test(t, func(t *testing.T) {
			up := newScriptUpstream()
			up.set(t, []string{"*", "A"}, []string{line})
			r := newTestRouter(t, func(c *ZoneConfig) {
				c.Names, c.SearchCut = []string{"cluster.local"}, []string{"cluster.local"}
			}, up)
			for i := range 3 {
				ask(t, r, packedQuery(fmt.Sprintf("www%d.com.cluster.local.", i), dns.TypeA, false, false), client(wire.UDP))
			}
			if got := strings.Count(up.asked(), "asked com.cluster.local. A"); got != 1 {
				t.Errorf("%s: asked for the level %d times", line, got)
			}
		})
	}
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
