package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/listen"
	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

func quiet() environment { return environment{lookup: vars(), stdout: io.Discard, stderr: io.Discard} }

func testBuilder() *builder {
	b := newBuilder(slog.New(slog.DiscardHandler), quiet(), newMetrics())
	b.limitsOf = func() listen.Config { return listen.Config{} }
	b.interfaces = func(name string) ([]netip.Addr, error) {
		if name == "eth0" {
			return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}, nil
		}
		return nil, errors.New("no such interface")
	}
	return b
}

func parsed(t *testing.T, text string) *corefile.Config {
	t.Helper()
	cfg, err := corefile.Parse("Corefile", text, corefile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestBind: which addresses and ports a Corefile serves.
func TestBind(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("169.254.25.10"), netip.MustParseAddr("10.96.0.10")}
	for _, tt := range []struct {
		name, text string
		own        []netip.Addr
		want, err  string
	}{
		{name: "one address", text: ". {\nbind 192.0.2.9\n}", want: "192.0.2.9:53"},
		{name: "interface", text: ". {\nbind eth0\n}", want: "192.0.2.1:53 192.0.2.2:53"},
		{name: "interface but for an address", text: ". {\nbind eth0 {\nexcept 192.0.2.2\n}\n}", want: "192.0.2.1:53"},
		{name: "nothing is left", text: ". {\nbind eth0 {\nexcept eth0\n}\n}", err: "no address is left"},
		{name: "unknown interface", text: ". {\nbind eth7\n}", err: `Corefile:1: bind: "eth7"`},
		{name: "own interface, before it is there", text: ". {\nbind nodelocaldns\n}", own: own, want: "10.96.0.10:53 169.254.25.10:53"},
		{name: "all addresses", text: ".:1053 {\nwhoami\n}", want: "[::]:1053"},
		{name: "both wildcards", text: ".:1053 {\nbind 0.0.0.0 ::\n}", want: "[::]:1053"},
		{name: "all addresses and the node's own by themselves", text: ". {\nbind 0.0.0.0\n}", own: own, want: "0.0.0.0:53 10.96.0.10:53 169.254.25.10:53"},
		{name: "two blocks, two ports", text: "a.test:1 b.test:2 {\nbind 192.0.2.9\n}\n.:1 {\nbind 192.0.2.8\n}", want: "192.0.2.8:1 192.0.2.9:1 192.0.2.9:2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := testBuilder()
			b.own, b.ifaceName = tt.own, "nodelocaldns"
			r, err := b.build(parsed(t, tt.text), nil)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer r.discard(nil)
			var got []string
			for _, at := range slices.SortedFunc(maps.Keys(r.endpoints), netip.AddrPort.Compare) {
				got = append(got, at.String())
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestStoresAndUpstreamsAreKept: what a reload takes over, and that equal blocks on two addresses do not share memory.
func TestStoresAndUpstreamsAreKept(t *testing.T) {
	b := testBuilder()
	block := func(zone, bind, rest string) string {
		return zone + " {\nbind " + bind + "\nforward . 192.0.2.53\n" + rest + "\n}\n"
	}
	first, err := b.build(parsed(t, block("a.test", "192.0.2.1", "cache 30")+block("a.test", "192.0.2.2", "cache 30")+block("b.test", "192.0.2.1", "cache 30")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.stores) != 3 || len(first.forwards) != 3 {
		t.Fatalf("%d stores and %d upstreams, want 3 and 3", len(first.stores), len(first.forwards))
	}
	second, err := b.build(parsed(t, block("a.test", "192.0.2.1", "cache 30")+block("a.test", "192.0.2.2", "cache 30\nlog\nbufsize 512")+block("b.test", "192.0.2.1", "cache 31")), first)
	if err != nil {
		t.Fatal(err)
	}
	kept, upstreams := 0, 0
	for k, s := range second.stores {
		if first.stores[k] == s {
			kept++
		}
	}
	for k, u := range second.forwards {
		if first.forwards[k] == u {
			upstreams++
		}
	}
	if kept != 2 || upstreams != 3 {
		t.Errorf("%d of 3 stores and %d of 3 upstreams are kept, want 2 and 3", kept, upstreams)
	}
	first.retire(second)
	second.discard(nil)
}

// TestMemoryIsShared: all memories together keep to half of the limit, each by what it would take, and one that is kept gets
// its new share when the configuration comes into use.
func TestMemoryIsShared(t *testing.T) {
	b := testBuilder()
	small, large := ". {\nbind 192.0.2.1\nwhoami\ncache 30\n}\n", "a.test {\nbind 192.0.2.1\nwhoami\ncache 30 {\nsuccess 1000000\n}\n}\n"
	sum := func(r *running) (n int64) {
		for _, bytes := range r.bounds {
			n += bytes
		}
		return n
	}
	free, err := b.build(parsed(t, small+large), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := sum(free); n < 1000<<20 {
		t.Errorf("without a limit %d bytes", n)
	}
	free.discard(nil)
	b.memory = 64 << 20
	one, err := b.build(parsed(t, small), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := sum(one); n != 2*9984*1024 {
		t.Errorf("within the limit %d bytes", n)
	}
	two, err := b.build(parsed(t, small+large), one)
	if err != nil {
		t.Fatal(err)
	}
	kept := slices.Collect(maps.Values(one.stores))[0]
	if n := sum(two); n > 32<<20 || n < 31<<20 || two.bounds[kept] < 1<<19 || two.bounds[kept] > 1<<20 {
		t.Errorf("beyond the limit %d bytes, %d of them for the small one", n, two.bounds[kept])
	}
	for i := range 9984 {
		var r wire.Reply
		m := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.test.", i), dns.TypeA)
		m.Response = true
		packed, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Read(packed[12:], 0, packed); err != nil {
			t.Fatal(err)
		}
		e, room := store.NewEntry(r.Size())
		e.Answer = r.Answer(room, 0, 60)
		kept.Put(e, store.Success, kept.Now(), time.Minute, nil)
	}
	before := kept.Len(store.Success)
	two.attach()
	if after := kept.Len(store.Success); before != 9984 || after >= before || after < 2000 {
		t.Errorf("%d answers before, %d after the new bound", before, after)
	}
	one.discard(two)
	two.discard(nil)
}

// TestFailedBuildLeavesNothing: an upstream of the old configuration survives a new one that cannot be built.
func TestFailedBuildLeavesNothing(t *testing.T) {
	b := testBuilder()
	old, err := b.build(parsed(t, ". {\nbind 192.0.2.1\nforward . 192.0.2.53\n}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer old.discard(nil)
	if _, err := b.build(parsed(t, ". {\nbind 192.0.2.1\nforward . 192.0.2.53\n}\nb.test {\nbind 192.0.2.1\nforward . tls://192.0.2.54 {\ntls /does/not/exist\n}\n}"), old); err == nil || !strings.Contains(err.Error(), "Corefile:7: forward:") {
		t.Fatalf("error %v", err)
	}
	for _, u := range old.forwards {
		select {
		case <-u.done:
			t.Error("the upstream in use was closed")
		default:
		}
	}
}

func TestBuildProblems(t *testing.T) {
	for text, want := range map[string]string{
		". {\nbind 192.0.2.1\nforward . 192.0.2.1\n}":                               "Corefile:3: forward: upstream 192.0.2.1:53 is an address this block listens on",
		". {\nbind 192.0.2.1\ntemplate IN NOSUCHTYPE {\nrcode NXDOMAIN\n}\n}":       "Corefile:3: template:",
		". {\nbind 192.0.2.1\nforward . tls://192.0.2.2 {\ntls parts_test.go\n}\n}": "holds no PEM certificate",
	} {
		r, err := testBuilder().build(parsed(t, text), nil)
		if err == nil {
			r.discard(nil)
			t.Errorf("%q is accepted", text)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	// Another block of the same process, on another port, is no circle.
	r, err := testBuilder().build(parsed(t, ".:1 {\nbind 192.0.2.1\nforward . 192.0.2.1:2\n}\n.:2 {\nbind 192.0.2.1\nforward . 192.0.2.3\n}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.discard(nil)
}

// TestDirectivesHaveEffect asks a running process about directives that decide answers.
func TestDirectivesHaveEffect(t *testing.T) {
	up := newUpstream(t, "192.0.2.1")
	c := start(t, block(".", up.addr, "rewrite name old.test new.test", "template IN TXT t.test {\n answer \"{{ .Name }} 60 IN TXT made\"\n }",
		"hosts {\n 192.0.2.66 h.test\n fallthrough\n }", "template IN AAAA {\n rcode NOERROR\n }", "log . \"{remote} {type} {name} {rcode} {>rflags}\"")+
		block("who.test", up.addr+" {\n except who.test\n }", "whoami")+
		block("quiet.test", "127.0.0.1:9"))
	for name, want := range map[string]string{"old.test": "192.0.2.1", "h.test": "192.0.2.66", "other.test": "192.0.2.1"} {
		if got := c.ask(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if up.count("new.test.") != 1 || up.count("old.test.") != 0 || up.count("h.test.") != 0 {
		t.Errorf("upstream was asked %v", up.asked)
	}
	exchange := func(name string, qtype uint16) *dns.Msg {
		t.Helper()
		m, _, err := new(dns.Client).ExchangeContext(t.Context(), new(dns.Msg).SetQuestion(name, qtype), "127.0.0.1:"+c.port)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := exchange("t.test.", dns.TypeTXT); len(m.Answer) != 1 || !strings.Contains(m.Answer[0].String(), "made") {
		t.Errorf("template: %v", m)
	}
	if m := exchange("a.test.", dns.TypeAAAA); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 0 {
		t.Errorf("P32 AAAA by template: %v", m)
	}
	if m := exchange("x.who.test.", dns.TypeA); len(m.Extra) == 0 {
		t.Errorf("whoami: %v", m)
	}
	c.eventually("the query is logged in CoreDNS's way", func() bool {
		return strings.Contains(c.said(), "[INFO] 127.0.0.1 A other.test. NOERROR qr,rd,ra\n")
	})
	if got := c.ask("a.quiet.test"); got != "SERVFAIL" {
		t.Errorf("unreachable upstream: %s", got)
	}
	c.eventually("the failure is logged by errors", func() bool { return strings.Contains(c.said(), "a.quiet.test.") })
}

// TestInterfaces: bind by interface name reads the addresses of this host.
func TestInterfaces(t *testing.T) {
	addrs, err := interfaceAddrs("lo")
	if err != nil || len(addrs) == 0 || !addrs[0].IsLoopback() {
		t.Errorf("lo: %v, %v", addrs, err)
	}
	if _, err := interfaceAddrs("no-such-link"); err == nil {
		t.Error("a missing interface is accepted")
	}
}
