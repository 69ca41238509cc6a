package corefile

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

// nodeOptions are the options of an ordinary IPVS node.
func nodeOptions() Options {
	return Options{
		LocalIPs:   []netip.Addr{netip.MustParseAddr("169.254.25.10")},
		ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Hints:      map[string]string{pillarCluster: "set -cluster-dns"},
	}
}

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// TestFixtures parses look-alikes of the Corefiles that installers ship and compares the canonical text with a golden file.
func TestFixtures(t *testing.T) {
	files, err := filepath.Glob("testdata/*.corefile")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			opts := nodeOptions()
			if strings.Contains(file, "ipv6") {
				opts.LocalIPs = []netip.Addr{netip.MustParseAddr("fd00::25:10")}
			}
			opts.Env = env("UPSTREAM", "192.0.2.53", "ZONE_SUFFIX", "corp.example")
			cfg, err := Parse(file, string(text), opts)
			if err != nil {
				t.Fatal(err)
			}
			got := cfg.String()
			golden := strings.TrimSuffix(file, ".corefile") + ".want"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("canonical text (-want +got):\n%s", diff)
			}
			again, err := Parse("canonical", got, Options{})
			if err != nil {
				t.Fatalf("the canonical text is not accepted: %v", err)
			}
			if diff := cmp.Diff(got, again.String()); diff != "" {
				t.Errorf("the canonical text changes when parsed again:\n%s", diff)
			}
		})
	}
}

func TestReferenceIsTheDefault(t *testing.T) {
	cfg, err := Parse("reference", Reference(), nodeOptions())
	if err != nil {
		t.Fatal(err)
	}
	var zones []string
	for _, b := range cfg.Blocks {
		zones = append(zones, b.Zones[0].Name)
		if len(b.Bind) != 1 || b.Bind[0].Addr.String() != "169.254.25.10" {
			t.Errorf("block %s binds %v", b.Zones[0].Name, b.Bind)
		}
	}
	if diff := cmp.Diff([]string{"cluster.local.", "in-addr.arpa.", "ip6.arpa.", "."}, zones); diff != "" {
		t.Errorf("zones (-want +got):\n%s", diff)
	}
	cluster := cfg.Blocks[0]
	if f := cluster.Forward[0]; !f.ForceTCP || f.Targets[0].Addr.String() != "10.96.0.10:53" {
		t.Errorf("cluster names go to %v, force_tcp %v", f.Targets, f.ForceTCP)
	}
	if h := cluster.Health; h == nil || h.Addr != "169.254.25.10:8080" {
		t.Errorf("health = %+v", h)
	}
	if f := cfg.Blocks[3].Forward[0]; f.ForceTCP || f.Targets[0].File != "/etc/resolv.conf" {
		t.Errorf("other names go to %v, force_tcp %v", f.Targets, f.ForceTCP)
	}
}

// TestProblems holds what must be refused, and what the message must say. %s in the text is replaced by a valid upstream.
func TestProblems(t *testing.T) {
	long := strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("a", 62)
	in := func(line string) string { return ".:53 {\n" + line + "\n}\n" }
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		// C01: variables
		{"C01 two addresses in one variable", in("forward . {$TWO}"), []string{"Corefile:2: forward:", `"192.0.2.1 192.0.2.2"`}},
		{"C01 unset variable", in("forward . {$UNSET}"), []string{"Corefile:2: forward:", "UNSET", "not set"}},
		{"C01 unset variable, other form", in("forward . {%UNSET%}"), []string{"UNSET"}},
		{"C01 empty variable", in("forward . {$EMPTY}"), []string{"EMPTY", "empty"}},
		{"C01 unclosed variable", in("forward . {$UNCLOSED"), []string{`"{$UNCLOSED"`}},
		{"C01 empty name", in("forward . {$}"), []string{`"{$}"`}},
		{"C01 brace in a value", in("forward . {$BRACE}"), []string{"192.0.2.1 }"}},
		{"C01 newline in a value", in("forward . {$BLOCK}"), []string{`evil.test`}},
		{"C01 only a brace in a value", in("forward . {$ONLYBRACE}"), []string{`"}"`}},
		{"C01 unset variable in a key", "x{$UNSET}.test {\n whoami\n}", []string{"Corefile:1:", "UNSET"}},
		{"C01 variable that names itself", in("forward . {$LOOP}"), []string{`"{$LOOP}"`}},
		// C03: broken files
		{"C03 missing brace", ".:53 {\n errors\n", []string{"Corefile:2", "missing }", "line 1"}},
		{"C03 missing inner brace", ".:53 {\n cache {\n success 100\n}\n", []string{"missing }"}},
		{"C03 unknown directive", in("cachee 30"), []string{`Corefile:2: unknown directive "cachee"`, "cache"}},
		{"C03 bad TTL", in("cache 30x"), []string{"Corefile:2: cache:", `"30x"`, "whole number"}},
		{"C03 bad TTL inside", in("cache {\n success 9984 30x\n}"), []string{"Corefile:3: cache:", `"30x"`}},
		{"C03 truncated in a quote", ".:53 {\n template IN A {\n answer \"{{ .Na", []string{"Corefile:3", "quote"}},
		{"C03 empty file", "", []string{"Corefile:", "empty"}},
		{"C03 only comments", "# nothing\n", []string{"empty"}},
		{"C03 stray brace", ".:53 {\n whoami\n}\n}\n", []string{"Corefile:4", "}"}},
		{"C03 brace on the same line", ". { whoami }", []string{"Corefile:1: whoami:", "first word of its line"}},
		{"C03 brace on its own line", in("cache\n{\nsuccess 9\n}"), []string{"Corefile:3", "{ must stand"}},
		{"C03 brace glued to the zone", ".:53{\n whoami\n}", []string{"Corefile:1"}},
		{"C03 bind of a name", in("bind 203.0.113.300"), []string{"Corefile:2: bind:", "203.0.113.300"}},
		{"C03 several problems at once", in("cachee\nforward .\nbufsize 9"), []string{"Corefile:2: ", "Corefile:3: forward:", "Corefile:4: bufsize:"}},
		{"not UTF-8", ".:53 {\n whoami \xff\n}", []string{"Corefile:2", "UTF-8"}},
		// C05: reverse zones
		{"C05 length 33", "10.0.0.0/33 {\n whoami\n}", []string{"10.0.0.0/33", "/32"}},
		{"C05 length 129", "fd00::/129 {\n whoami\n}", []string{"fd00::/129"}},
		{"C05 networks that overlap", "172.28.224.0/22 {\nwhoami\n}\n172.28.225.0/24 {\nwhoami\n}", []string{"Corefile:4:", "225.28.172.in-addr.arpa.", "duplicate"}},
		// C06: zone names
		{"C06 same zone in two spellings", "cluster.local {\nwhoami\n}\nCLUSTER.local.:53 {\nwhoami\n}", []string{"Corefile:4:", "duplicate", "line 1"}},
		{"C06 same zone twice in a key list", "a.test a.test {\nwhoami\n}", []string{"duplicate"}},
		{"C06 one bound, one not", "a.test {\nbind 127.0.0.1\n}\na.test {\nwhoami\n}", []string{"overlaps"}},
		{"C06 one not bound, one bound", "a.test {\nwhoami\n}\na.test {\nbind 127.0.0.1\n}", []string{"overlaps"}},
		{"C06 white space", "\"ex ample\" {\nwhoami\n}", []string{"Corefile:1", "white space"}},
		{"C06 empty label", "a..test {\nwhoami\n}", []string{"empty label"}},
		{"C06 not ASCII", "bücher.example {\nwhoami\n}", []string{"xn--"}},
		{"C06 label of 64", strings.Repeat("a", 64) + ".test {\nwhoami\n}", []string{"63"}},
		{"P25 name of 256 octets", long + " {\nwhoami\n}", []string{"255"}},
		{"C06 bad port", "a.test:x {\nwhoami\n}", []string{`port "x"`}},
		{"C06 port 0", "a.test:0 {\nwhoami\n}", []string{`port "0"`}},
		{"C06 port 65536", "a.test:65536 {\nwhoami\n}", []string{`port "65536"`}},
		{"C06 tls zone", "tls://a.test {\nwhoami\n}", []string{"tls://", "plain DNS"}},
		{"C06 trailing comma", "a.test, {\nwhoami\n}", []string{"comma"}},
		// C09: placeholders
		{"C09 forward without target", in("forward . "), []string{"Corefile:2: forward:", "no upstream"}},
		{"C09 unknown placeholder", in("forward . __PILLAR__UNKNOWN__"), []string{"Corefile:2: forward:", "__PILLAR__UNKNOWN__"}},
		{"C09 unknown placeholder in a key", "__PILLAR__NONE__:53 {\nwhoami\n}", []string{"Corefile:1:", "__PILLAR__NONE__"}},
		{"C09 placeholder in lower letters", in("forward . __PILLAR__x"), []string{"__PILLAR__x"}},
		{"option that would change answers", in("forward . 192.0.2.1 {\nnext NXDOMAIN\n}"), []string{"Corefile:3: forward:", "next is not supported"}},
		// N10
		{"N10 bind of nothing", in("bind"), []string{"Corefile:2: bind:"}},
		{"N10 bind with a length", in("bind 169.254.25.10/32"), []string{"169.254.25.10/32"}},
		{"N12 link-local without interface", in("bind fe80::1"), []string{"fe80::1", "interface"}},
		// the other directives
		{"upstream by name", in("forward . dns.example.test"), []string{"dns.example.test", "IP"}},
		{"upstream over HTTPS", in("forward . https://192.0.2.1"), []string{"https", "tls://"}},
		{"bad port of an upstream", in("forward . 192.0.2.1:99999"), []string{"192.0.2.1:99999"}},
		{"16 upstreams", in("forward . " + strings.Join(addrs(16), " ")), []string{"16", "15"}},
		{"unknown option", in("forward . 192.0.2.1 {\nforcetcp\n}"), []string{"Corefile:3: forward:", `"forcetcp"`, "force_tcp"}},
		{"bad policy", in("forward . 192.0.2.1 {\npolicy fastest\n}"), []string{"fastest", "round_robin"}},
		{"unsupported template option", in("template IN A {\nexpr true\n}"), []string{"Corefile:3: template:", "expr"}},
		{"bad template", in("template IN A {\nanswer \"{{ .Name\"\n}"), []string{"Corefile:3: template:"}},
		{"bad regular expression", in("template IN A {\nmatch (\n}"), []string{"Corefile:3: template:", `"("`}},
		{"rewrite of something else", in("rewrite type ANY HINFO"), []string{"Corefile:2: rewrite:", "name"}},
		{"rewrite with too many groups", in("rewrite name regex (.*)\\.a b{2}"), []string{"{2}"}},
		{"twice", in("cache 30\ncache 40"), []string{"Corefile:3: cache:", "only once"}},
		{"cache TTL 0", in("cache 0"), []string{"Corefile:2: cache:", `"0"`}},
		{"stale policy without stale", in("cache {\nserve_stale_policy prefer_positive\n}"), []string{"serve_stale"}},
		{"SERVFAIL kept too long", in("cache {\nservfail 6m\n}"), []string{"5m"}},
		{"prefetch percentage", in("cache {\nprefetch 5 1m 95%\n}"), []string{"95%", "90%"}},
		{"bufsize", in("bufsize 65535"), []string{"512", "4096"}},
		{"reload too often", in("reload 1s"), []string{"Corefile:2: reload:", "2s"}},
		{"health without port", in("health 127.0.0.1"), []string{"Corefile:2: health:", "IP:port"}},
		{"health by name", in("health node.test:8080"), []string{"node.test"}},
		{"prometheus port", in("prometheus :0"), []string{`"0"`}},
		{"braces where none belong", in("loop {\nx\n}"), []string{"Corefile:2: loop:", "braces"}},
		{"argument where none belongs", in("loop 3"), []string{"Corefile:2: loop:", "no argument"}},
		{"loadbalance weighted", in("loadbalance weighted f"), []string{"weighted"}},
		{"forward twice", in("forward . 192.0.2.1\nforward . 192.0.2.2"), []string{"Corefile:3: forward:", "line 2"}},
		{"forward twice, spelled otherwise", in("forward a.test 192.0.2.1\nforward dns://A.test.:53 192.0.2.2"), []string{"Corefile:3: forward:"}},
		{"forward from no port", in("forward .:x 192.0.2.1"), []string{"Corefile:2: forward:", "port"}},
		{"hosts line", in("hosts {\n1.2.3 a.test\n}"), []string{"Corefile:3: hosts:"}},
		{"import of nothing", in("import"), []string{"Corefile:2: import:"}},
		{"import of a missing file", in("import missing"), []string{"Corefile:2: import:", "missing", "before it is imported"}},
		{"import before the definition", in("import s") + "(s) {\nwhoami\n}\n", []string{"Corefile:2: import:"}},
		{"snippet twice", "(s) {\nwhoami\n}\n(s) {\nwhoami\n}\n" + in("whoami"), []string{"Corefile:4", "twice"}},
		{"snippet without end", "(s) {\nwhoami\n", []string{"missing }", "(s)"}},
		{"snippet that imports itself", "(s) {\nimport s\n}\n" + in("import s"), []string{"imports itself"}},
		{"snippets that import each other", "(a) {\nimport b\n}\n(b) {\nimport a\n}\n" + in("import a"), []string{"imports itself"}},
		{"two lameducks", "a.test {\nhealth :8080 {\nlameduck 1s\n}\n}\nb.test {\nhealth :8080\n}\n", []string{"lameduck"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opts := nodeOptions()
			opts.Env = env("TWO", "192.0.2.1 192.0.2.2", "EMPTY", "", "BRACE", "192.0.2.1 }", "ONLYBRACE", "}", "LOOP", "{$LOOP}",
				"BLOCK", "192.0.2.1\n}\nevil.test:53 {\n forward . 192.0.2.66")
			opts.ReadFile = func(string) ([]byte, error) { return nil, os.ErrNotExist }
			cfg, err := Parse("Corefile", tt.text, opts)
			if err == nil {
				t.Fatalf("accepted:\n%s", cfg)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the message lacks %q: %v", w, err)
				}
			}
		})
	}
}

func addrs(n int) []string {
	var out []string
	a := netip.MustParseAddr("192.0.2.1")
	for range n {
		out = append(out, a.String())
		a = a.Next()
	}
	return out
}

// TestAccepted holds what must be accepted, and a line its canonical text must have.
func TestAccepted(t *testing.T) {
	in := func(line string) string { return ".:53 {\n" + line + "\n}\n" }
	for _, tt := range []struct{ name, text, want string }{
		{"C01 one address", in("forward . {$ONE}"), "forward . 192.0.2.1 {"},
		{"C01 other form", in("forward . {%ONE%}"), "forward . 192.0.2.1 {"},
		{"C01 two in a word", "x{$ONE}y{$ONE}.test {\nwhoami\n}", "x192.0.2.1y192.0.2.1.test.:53 {"},
		{"C01 after template braces", in("template IN TXT {\nanswer \"{{ .Name }} TXT x.{$ONE}\"\n}"), `answer "{{ .Name }} TXT x.192.0.2.1"`},
		{"C01 template variable", in("template IN TXT {\nanswer \"{{ $x := .Name }}{{ $x }} TXT a\"\n}"), `answer "{{ $x := .Name }}{{ $x }} TXT a"`},
		{"C01 comment with an open variable", "# {$UNCLOSED\n" + in("whoami"), "whoami"},
		{"C05 /8", "10.0.0.0/8 {\nwhoami\n}", "10.in-addr.arpa.:53 {"},
		{"C05 /22", "172.28.224.0/22 {\nwhoami\n}", "224.28.172.in-addr.arpa.:53 225.28.172.in-addr.arpa.:53 226.28.172.in-addr.arpa.:53 227.28.172.in-addr.arpa.:53 {"},
		{"C05 /31", "10.6.84.2/31:5353 {\nwhoami\n}", "2.84.6.10.in-addr.arpa.:5353 3.84.6.10.in-addr.arpa.:5353 {"},
		{"C05 /0", "0.0.0.0/0 {\nwhoami\n}", "in-addr.arpa.:53 {"},
		{"C05 host bits set", "10.1.2.3/24 {\nwhoami\n}", "2.1.10.in-addr.arpa.:53 {"},
		{"C05 v6 /48", "fd00:1::/48 {\nwhoami\n}", "0.0.0.0.1.0.0.0.0.0.d.f.ip6.arpa.:53 {"},
		{"C05 v6 /61", "fd00::/61:53 {\nwhoami\n}", "0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.:53 1.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.:53"},
		{"forward from a zone with its port", in("forward .:53 192.0.2.1"), "forward . 192.0.2.1 {"},
		{"forward twice, the second for what the first leaves", in("forward . 192.0.2.1 {\nexcept a.test\n}\nforward . 192.0.2.2"), "forward . 192.0.2.2 {"},
		{"the same address on two lines", in("bind 127.0.0.1 ::1\nbind 127.0.0.1\nwhoami"), "bind 127.0.0.1 ::1\n"},
		{"C05 in forward", in("forward 10.0.0.0/15 192.0.2.1"), "forward 1.10.in-addr.arpa. 192.0.2.1 {"},
		{"C06 capitals", "Cluster.LOCAL:53 {\nwhoami\n}", "cluster.local.:53 {"},
		{"C06 scheme", "dns://cluster.local {\nwhoami\n}", "cluster.local.:53 {"},
		{"C06 punycode", "xn--bcher-kva.example {\nwhoami\n}", "xn--bcher-kva.example.:53 {"},
		{"C06 key list", "a.test:1 b.test,\nc.test {\nwhoami\n}", "a.test.:1 b.test.:53 c.test.:53 {"},
		{"C06 same zone on two ports", "a.test:1 a.test:2 {\nwhoami\n}", "a.test.:1 a.test.:2 {"},
		{"C06 same zone on two addresses", "a.test {\nbind 127.0.0.1\n}\na.test {\nbind 127.0.0.2\n}", "bind 127.0.0.2"},
		{"P25 odd octets", `a\.\000\255.TEST {` + "\nwhoami\n}", `a\.\000\255.test.:53 {`},
		{"P25 name of 255 octets", strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("a", 61) + " {\nwhoami\n}", "whoami"},
		{"C09 placeholder in a comment", "# __PILLAR__UNKNOWN__\n" + in("whoami # __PILLAR__NONE__"), "whoami"},
		{"C09 nothing for the server address", in("bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__"), "bind 169.254.25.10"},
		{"C09 domain", "svc.__PILLAR__DNS__DOMAIN__:53 {\nwhoami\n}", "svc.cluster.local.:53 {"},
		{"N10 address twice", in("bind 169.254.25.10 169.254.25.10"), "bind 169.254.25.10\n"},
		{"comment inside a word", in("cache 30#x"), "success 9984 30 0"},
		{"ceiling below the floor", in("cache {\nsuccess 9984 2 9\n}"), "success 9984 2 2"},
		{"a floor that is written", in("cache {\ndenial 9984 30 5\n}"), "denial 9984 30 5"},
		{"P12 no floor unasked", in("cache"), "denial 9984 1800 0"},
		{"small capacity", in("cache {\nsuccess 9\n}"), "success 1024 3600 0"},
		{"CRLF and tabs", ".:53 {\r\n\tcache\t30\r\n}\r\n", "denial 9984 30 0"},
		{"byte order mark", "\ufeff.:53 {\nwhoami\n}", ".:53 {"},
		{"no braces", ".:53\nwhoami\ncache 9", "success 9984 9 0"},
		{"brace on the next line", ".:53\n{\nwhoami\n}", "whoami"},
		{"force_tcp over prefer_udp (C11)", in("forward . 192.0.2.1 {\nprefer_udp\nforce_tcp\n}"), "force_tcp\n        policy"},
		{"tls upstream", in("forward . tls://9.9.9.9%dns.quad9.net"), "forward . tls://9.9.9.9%dns.quad9.net {"},
		{"tls upstream with port", in("forward . tls://9.9.9.9%dns.quad9.net:8853"), "forward . tls://9.9.9.9%dns.quad9.net:8853 {"},
		{"tls v6 upstream", in("forward . tls://[2620:fe::fe%dns.quad9.net]:8853"), "forward . tls://2620:fe::fe%dns.quad9.net:8853 {"},
		{"U05 link-local upstream", in("forward . fe80::1%eth0"), "forward . fe80::1%eth0 {"},
		{"U05 zone of a global address", in("forward . 2001:db8::53%eth0"), "forward . 2001:db8::53 {"},
		{"upstream named twice", in("forward . 192.0.2.1 192.0.2.1:53"), "forward . 192.0.2.1 {"},
		{"log format", in(`log . "{remote} {name}"`), `log . "{remote} {name}" {`},
		{"bare seconds in timeouts", in("timeouts {\nread 5\n}"), "read 5s"},
		{"hosts", in("hosts {\n192.0.2.1 A.test b.test\nfallthrough\n}"), "192.0.2.1 A.test b.test"},
		{"rewrite block", in("rewrite continue {\nname suffix .a.test .b.test answer auto\n}"), "rewrite continue name suffix .a.test. .b.test. answer auto"},
		{"search_cut", in("search_cut"), "search_cut\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opts := nodeOptions()
			opts.Env = env("ONE", "192.0.2.1")
			cfg, err := Parse("Corefile", tt.text, opts)
			if err != nil {
				t.Fatal(err)
			}
			if got := cfg.String(); !strings.Contains(got, tt.want) {
				t.Errorf("canonical text lacks %q:\n%s", tt.want, got)
			}
		})
	}
}

// TestC09ClusterDNSUnknown: an unknown cluster DNS is an error that says what to do, never an empty value.
func TestC09ClusterDNSUnknown(t *testing.T) {
	opts := nodeOptions()
	opts.ClusterDNS = nil
	_, err := Parse("Corefile", Reference(), opts)
	if err == nil || !strings.Contains(err.Error(), pillarCluster) || !strings.Contains(err.Error(), "-cluster-dns") {
		t.Errorf("error = %v", err)
	}
	opts.KeepUnknown = true
	cfg, err := Parse("Corefile", Reference(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(cfg.String(), "forward . "+pillarCluster) {
		t.Errorf("the placeholder is gone:\n%s", cfg)
	}
}

// TestC09SeveralLocalIPs: a placeholder inside a longer word takes the first value, so health has one address.
func TestC09SeveralLocalIPs(t *testing.T) {
	opts := nodeOptions()
	opts.LocalIPs = append(opts.LocalIPs, netip.MustParseAddr("10.96.0.10"))
	opts.ServerIPs = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	opts.ClusterDNS = []netip.Addr{netip.MustParseAddr("10.96.0.11")}
	cfg, err := Parse("Corefile", Reference(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if b := cfg.Blocks[0]; len(b.Bind) != 2 || b.Health.Addr != "169.254.25.10:8080" {
		t.Errorf("bind %v, health %v", b.Bind, b.Health)
	}
	opts.LocalIPs = []netip.Addr{netip.MustParseAddr("fd00::25:10")}
	if cfg, err = Parse("Corefile", Reference(), opts); err != nil {
		t.Fatal(err)
	}
	if got := cfg.Blocks[0].Health.Addr; got != "[fd00::25:10]:8080" {
		t.Errorf("health of an IPv6 address: %s", got)
	}
}

func TestImports(t *testing.T) {
	files := map[string]string{
		"/etc/dns/extra/zones": "a.test:53 {\n import ../common\n}\n",
		"/etc/dns/common":      "cache 30\nforward . 192.0.2.1\n",
		"/etc/dns/self":        "import self\n",
		"/etc/dns/bad":         "errors\nbogus 1\n",
	}
	opts := nodeOptions()
	opts.ReadFile = func(p string) ([]byte, error) {
		if s, ok := files[p]; ok {
			return []byte(s), nil
		}
		return nil, os.ErrNotExist
	}
	cfg, err := Parse("/etc/dns/Corefile", "(log) {\n errors\n}\nimport extra/zones\n.:53 {\n import log\n import common\n}\n", opts)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/etc/dns/extra/zones", "/etc/dns/common", "/etc/dns/common"}, cfg.Files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if len(cfg.Blocks) != 2 || cfg.Blocks[0].Cache == nil || cfg.Blocks[1].Errors == nil || cfg.Blocks[1].Forward == nil {
		t.Errorf("blocks:\n%s", cfg)
	}
	if _, err := Parse("/etc/dns/Corefile", ".:53 {\n import self\n}\n", opts); err == nil || !strings.Contains(err.Error(), "imports itself") {
		t.Errorf("a file that imports itself: %v", err)
	}
	if _, err := Parse("/etc/dns/Corefile", ".:53 {\n import bad\n}\n", opts); err == nil || !strings.Contains(err.Error(), "/etc/dns/bad:2: unknown directive") {
		t.Errorf("an error in an imported file: %v", err)
	}
}

// TestImportsAreBounded: snippets that double at each level must not take the memory of the node.
func TestImportsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("(s0) {\n whoami\n}\n")
	for i := range 40 {
		b.WriteString("(s" + itoa(i+1) + ") {\n import s" + itoa(i) + "\n import s" + itoa(i) + "\n}\n")
	}
	b.WriteString(".:53 {\n import s40\n}\n")
	if _, err := Parse("Corefile", b.String(), nodeOptions()); err == nil || !strings.Contains(err.Error(), "expand to more than") {
		t.Errorf("error = %v", err)
	}
}

func itoa(i int) string { return strconv.Itoa(i) }

func TestImportPattern(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.server": "b.test {\nwhoami\n}\n", "a.server": "a.test {\nwhoami\n}\n", "x.other": "}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := Parse(filepath.Join(dir, "Corefile"), "import *.server\nimport *.none\n.:53 {\nwhoami\n}\n", nodeOptions())
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Blocks) != 3 || cfg.Blocks[0].Zones[0].Name != "a.test." {
		t.Errorf("blocks:\n%s", cfg)
	}
	if len(cfg.Warnings) != 1 || !strings.Contains(cfg.Warnings[0].Error(), "*.none") {
		t.Errorf("warnings: %v", cfg.Warnings)
	}
}
