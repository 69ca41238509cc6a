package corefile

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func show(k KubeDNS) string {
	var b strings.Builder
	for _, s := range k.Stubs {
		fmt.Fprintf(&b, "%s %v\n", s.Zone, s.Servers)
	}
	if k.Upstreams != nil {
		fmt.Fprintf(&b, "upstreams %v\n", k.Upstreams)
	}
	return b.String()
}

// TestC07KubeDNS: each entry of the kube-dns ConfigMap is checked by itself.
func TestC07KubeDNS(t *testing.T) {
	for _, tt := range []struct {
		name, stubs, upstreams string
		want                   string
		problems               []string // one a problem, parts of the text
		err                    string
	}{
		{name: "nothing"},
		{name: "white space", stubs: " \n", upstreams: "\n"},
		{name: "plain", stubs: `{"example.com":["192.0.2.1"]}`, want: "example.com. [192.0.2.1:53]\n"},
		{name: "capitals, port, IPv6", stubs: `{"Example.COM":["192.0.2.1:5353","2001:db8::1","[2001:db8::2]:54"]}`,
			want: "example.com. [192.0.2.1:5353 [2001:db8::1]:53 [2001:db8::2]:54]\n"},
		{name: "host name", stubs: `{"a.test":["cluster.local"],"b.test":["192.0.2.1"]}`, want: "b.test. [192.0.2.1:53]\n",
			problems: []string{`"cluster.local"`, `"a.test": no usable server`}},
		{name: "host name beside an address", stubs: `{"a.test":["x","192.0.2.1"]}`, want: "a.test. [192.0.2.1:53]\n", problems: []string{`"x"`}},
		{name: "empty list", stubs: `{"a.test":[],"b.test":["192.0.2.1"]}`, want: "b.test. [192.0.2.1:53]\n", problems: []string{"no usable"}},
		{name: "string for a list", stubs: `{"a.test":"192.0.2.1","b.test":["192.0.2.1"]}`, want: "b.test. [192.0.2.1:53]\n", problems: []string{"not a list"}},
		{name: "number for a server", stubs: `{"a.test":[1,"192.0.2.1"]}`, want: "a.test. [192.0.2.1:53]\n", problems: []string{"not a string"}},
		{name: "bad JSON", stubs: `{"a.test": [`, err: "stubDomains"},
		{name: "list for an object", stubs: `["a.test"]`, err: "stubDomains"},
		{name: "braces in a domain", stubs: `{"a.test:5 {\n}\nevil.test":["192.0.2.66"],"b.test":["192.0.2.1"]}`,
			want: "b.test. [192.0.2.1:53]\n", problems: []string{"evil.test"}},
		{name: "newline in a server", stubs: `{"a.test":["192.0.2.1\n}\nevil.test:5 {\n forward . 192.0.2.66"]}`,
			problems: []string{"evil.test", "no usable"}},
		{name: "the root", stubs: `{".":["192.0.2.1"]}`, problems: []string{"upstreamNameservers"}},
		{name: "empty domain", stubs: `{"":["192.0.2.1"]}`, problems: []string{"empty name"}},
		{name: "same domain twice", stubs: `{"A.test":["192.0.2.1"],"a.test.":["192.0.2.2"]}`, want: "a.test. [192.0.2.1:53]\n", problems: []string{"the same domain"}},
		{name: "four upstreams", upstreams: `["192.0.2.1","192.0.2.2","192.0.2.3","192.0.2.4:53","192.0.2.4"]`,
			want: "upstreams [192.0.2.1:53 192.0.2.2:53 192.0.2.3:53 192.0.2.4:53]\n"},
		{name: "upstream by name", upstreams: `["dns.example.test","192.0.2.1:5300"]`, want: "upstreams [192.0.2.1:5300]\n", problems: []string{"dns.example.test"}},
		{name: "no upstreams", upstreams: `[]`},
		{name: "upstreams no list", upstreams: `"192.0.2.1"`, err: "upstreamNameservers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, problems, err := ParseKubeDNS("/etc/kube-dns", tt.stubs, tt.upstreams)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error = %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, show(k)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(problems) != len(tt.problems) {
				t.Fatalf("problems %v, want %q", problems, tt.problems)
			}
			for i, p := range problems {
				if !strings.Contains(p.Error(), tt.problems[i]) {
					t.Errorf("problem %v lacks %q", p, tt.problems[i])
				}
			}
		})
	}
}

// TestC07Merge: stub domains become blocks; what the Corefile serves itself wins; custom upstreams replace resolv.conf.
func TestC07Merge(t *testing.T) {
	opts := nodeOptions()
	opts.LocalIPs = append(opts.LocalIPs, netip.MustParseAddr("10.96.0.10"))
	opts.ClusterDNS = []netip.Addr{netip.MustParseAddr("10.96.0.11")}
	var err error
	opts.KubeDNS, _, err = ParseKubeDNS("d", `{"cluster.local":["192.0.2.9"],"corp.example":["192.0.2.1","192.0.2.2:5353"]}`, `["192.0.2.3","192.0.2.4"]`)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := Parse("Corefile", Reference(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Blocks) != 5 {
		t.Fatalf("%d blocks, want the four of the Corefile and one stub domain", len(cfg.Blocks))
	}
	want := `corp.example.:53 {
    errors
    bind 169.254.25.10 10.96.0.10
    cache {
        success 9984 30 0
        denial 9984 30 0
        servfail 5s
    }
    forward . 192.0.2.1 192.0.2.2:5353 {
        policy random
        expire 10s
        read_timeout 2s
        max_fails 2
        health_check 500ms
    }
}
`
	if diff := cmp.Diff(want, cfg.Blocks[4].String()); diff != "" {
		t.Errorf("stub block (-want +got):\n%s", diff)
	}
	if len(cfg.Warnings) != 1 || !strings.Contains(cfg.Warnings[0].Error(), "cluster.local.") {
		t.Errorf("warnings: %v", cfg.Warnings)
	}
	if got := cfg.Blocks[3].Forward[0].Targets; len(got) != 2 || got[0].Addr.String() != "192.0.2.3:53" {
		t.Errorf("root zone goes to %v", got)
	}
}

// TestC11CustomUpstreamsUseUDP: force_tcp of the template is for cluster DNS and node resolvers, not for what an operator
// names in the kube-dns ConfigMap.
func TestC11CustomUpstreamsUseUDP(t *testing.T) {
	text := ".:53 {\n forward . __PILLAR__UPSTREAM__SERVERS__ {\n  force_tcp\n }\n}\na.test {\n forward . __PILLAR__CLUSTER__DNS__ {\n  force_tcp\n }\n}\n"
	opts := nodeOptions()
	opts.KubeDNS.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")}
	cfg, err := Parse("Corefile", text, opts)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Blocks[0].Forward[0].ForceTCP {
		t.Error("custom upstreams are asked over TCP only")
	}
	if !cfg.Blocks[1].Forward[0].ForceTCP {
		t.Error("cluster DNS lost its force_tcp")
	}
	opts.KubeDNS = KubeDNS{}
	if cfg, err = Parse("Corefile", text, opts); err != nil {
		t.Fatal(err)
	}
	if f := cfg.Blocks[0].Forward[0]; !f.ForceTCP || f.Targets[0].File != "/etc/resolv.conf" {
		t.Errorf("without custom upstreams: %v, force_tcp %v", f.Targets, f.ForceTCP)
	}
}
