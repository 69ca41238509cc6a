package main

import (
	"testing"

	"github.com/miekg/dns"
)

// TestTemplateAliasIsFollowed: a template that answers with an alias, in one block, for a name that another block knows.
func TestTemplateAliasIsFollowed(t *testing.T) {
	cluster, other := newUpstream(t, "10.96.0.1"), newUpstream(t, "192.0.2.1")
	c := start(t, block("cluster.local", cluster.addr, "cache 30")+block(".", other.addr, "cache 30",
		"template IN A short.test {\n match ^(?P<name>[a-z]+)[.]short[.]test[.]$\n answer \"{{ .Name }} 60 IN CNAME {{ .Group.name }}.team-a.svc.cluster.local.\"\n }"))
	for i, want := range []int{1, 1} { // the second answer is from memory
		m, err := dns.Exchange(new(dns.Msg).SetQuestion("web.short.test.", dns.TypeA), "127.0.0.1:"+c.port)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Answer) != 2 || m.Answer[1].(*dns.A).A.String() != "10.96.0.1" || m.Answer[1].Header().Name != "web.team-a.svc.cluster.local." {
			t.Errorf("question %d: %v", i, m.Answer)
		}
		if n := cluster.count("web.team-a.svc.cluster.local."); n != want {
			t.Errorf("question %d: cluster DNS was asked %d times", i, n)
		}
	}
}
