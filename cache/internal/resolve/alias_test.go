package resolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// aliasRouter serves ".", with the given answers on the spot, and cluster.local.
func aliasRouter(t *testing.T, local localAnswers, change func(*ZoneConfig)) (*Router, *scriptUpstream) {
	t.Helper()
	up := newScriptUpstream()
	zone := func(name string, locals ...Local) *Zone {
		return newTestZone(t, func(cfg *ZoneConfig) {
			cfg.Names, cfg.Local = []string{name}, locals
			if change != nil {
				change(cfg)
			}
		}, up)
	}
	return NewRouter(RouterConfig{Server: "dns://test", Zones: []*Zone{zone("cluster.local"), zone(".", local)}}), up
}

// inWords is a reply in a line: the code, and the records of answer and authority section.
func inWords(m *dns.Msg) string {
	out := []string{dns.RcodeToString[m.Rcode]}
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		out = append(out, strings.Join(strings.Fields(rr.String()), " "))
	}
	return strings.Join(out, "; ")
}

// TestAliasMadeOnTheSpotIsFollowed: the answer of a template that is an alias has the
// records at its end as well, for who asks first and from memory, as in CoreDNS.
func TestAliasMadeOnTheSpotIsFollowed(t *testing.T) {
	local := localAnswers{
		"out.test.":    "out.test. 60 IN CNAME www.example.",
		"in.test.":     "in.test. 60 IN CNAME web.team-a.svc.cluster.local.",
		"twice.test.":  "twice.test. 60 IN CNAME out.test.",
		"gone.test.":   "gone.test. 60 IN CNAME nothing.example.",
		"broken.test.": "broken.test. 60 IN CNAME broken.example.",
		"loop.test.":   "loop.test. 60 IN CNAME loop.test.",
	}
	r, up := aliasRouter(t, local, nil)
	up.set(t, []string{"www.example.", "A"}, []string{"answer www.example. 30 IN A 192.0.2.1"})
	up.set(t, []string{"web.team-a.svc.cluster.local.", "A"}, []string{"answer web.team-a.svc.cluster.local. 5 IN A 10.96.0.1"})
	up.set(t, []string{"nothing.example.", "A"}, []string{"rcode NXDOMAIN", "authority example. 30 IN SOA ns.example. h.example. 1 2 3 4 30"})
	up.set(t, []string{"broken.example.", "A"}, []string{"rcode SERVFAIL"})
	loop := strings.Repeat("; loop.test. 5 IN CNAME loop.test.", maxAliases+1)
	for _, c := range []struct{ name, want string }{
		{"out.test.", "NOERROR; out.test. 60 IN CNAME www.example.; www.example. 30 IN A 192.0.2.1"},
		{"in.test.", "NOERROR; in.test. 60 IN CNAME web.team-a.svc.cluster.local.; web.team-a.svc.cluster.local. 5 IN A 10.96.0.1"},
		{"twice.test.", "NOERROR; twice.test. 60 IN CNAME out.test.; out.test. 60 IN CNAME www.example.; www.example. 30 IN A 192.0.2.1"},
		{"gone.test.", "NXDOMAIN; gone.test. 30 IN CNAME nothing.example.; example. 30 IN SOA ns.example. h.example. 1 2 3 4 30"},
		{"broken.test.", "SERVFAIL; broken.test. 5 IN CNAME broken.example."},
		{"loop.test.", "SERVFAIL" + loop},
	} {
		for i, transport := range []wire.Transport{wire.UDP, wire.TCP, wire.UDP} {
			if got := inWords(ask(t, r, packedQuery(c.name, dns.TypeA, i > 0, false), client(transport))); got != c.want {
				t.Errorf("%s, question %d: %s\nwant %s", c.name, i, got, c.want)
			}
		}
		if n := strings.Count(up.asked(), "\n"); n > 1 {
			t.Errorf("%s: %d questions upstream", c.name, n)
		}
	}
}

// TestAliasThatLeadsNowhere stays as it is where no block has an answer to its end.
func TestAliasThatLeadsNowhere(t *testing.T) {
	r, _ := aliasRouter(t, localAnswers{"out.test.": "out.test. 60 IN CNAME www.example."}, func(c *ZoneConfig) { c.Routes[0].From = "cluster.local" })
	for range 2 {
		if got, want := inWords(ask(t, r, packedQuery("out.test.", dns.TypeA, false, false), client(wire.UDP))), "NOERROR; out.test. 5 IN CNAME www.example."; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestAliasOfALargeAnswer: the end is looked up whole whatever the client's transport, and cut for the client.
func TestAliasOfALargeAnswer(t *testing.T) {
	r, up := aliasRouter(t, localAnswers{"out.test.": "out.test. 60 IN CNAME www.example."}, nil)
	var lines []string
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("answer www.example. 30 IN A 192.0.2.%d", i))
	}
	up.set(t, []string{"www.example.", "A"}, lines)
	if m := ask(t, r, packedQuery("out.test.", dns.TypeA, false, false), client(wire.UDP)); !m.Truncated || len(m.Answer) < 20 {
		t.Errorf("over UDP: TC %v, %d records", m.Truncated, len(m.Answer))
	}
	if m := ask(t, r, packedQuery("out.test.", dns.TypeA, false, false), client(wire.TCP)); m.Truncated || len(m.Answer) != 101 {
		t.Errorf("over TCP: TC %v, %d records", m.Truncated, len(m.Answer))
	}
}
