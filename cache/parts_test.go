package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/listen"
	"github.com/nodedns/nodedns/cache/internal/node"
	"github.com/nodedns/nodedns/cache/internal/ops"
	"github.com/nodedns/nodedns/cache/internal/resolve"
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

func TestQueryLog(t *testing.T) {
	q := new(dns.Msg).SetQuestion("a.test.", dns.TypeMX)
	q.SetEdns0(1232, true)
	q.Id = 77
	query, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	r := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
	r.RecursionAvailable = true
	reply, err := r.Pack()
	if err != nil {
		t.Fatal(err)
	}
	rec := resolve.LogRecord{
		Origin: wire.Origin{Client: netip.MustParseAddrPort("[2001:db8::1]:5353"), Transport: wire.TCP}, Name: "a.test.", Type: "MX", Class: "IN", DO: true,
		Rcode: wire.NXDomain, Took: 1500 * time.Microsecond, Query: query, Reply: reply,
	}
	for _, tt := range []struct {
		rule corefile.LogRule
		want string
	}{
		{corefile.LogRule{Names: []string{"."}, Classes: []string{"all"}},
			fmt.Sprintf("[INFO] [2001:db8::1]:5353 - 77 \"MX IN a.test. tcp %d true 1232\" NXDOMAIN qr,rd,ra %d 0.0015s\n", len(query), len(reply))},
		{corefile.LogRule{Names: []string{"test."}, Classes: []string{"denial"}, Format: "{name}{/x} {combined}!"},
			fmt.Sprintf("[INFO] a.test.- [2001:db8::1]:5353 - 77 \"MX IN a.test. tcp %d true 1232\" NXDOMAIN qr,rd,ra %d 0.0015s \"0\"!\n", len(query), len(reply))},
		{corefile.LogRule{Names: []string{"."}, Classes: []string{"success", "error"}}, ""},
		{corefile.LogRule{Names: []string{"est."}, Classes: []string{"all"}}, ""},
	} {
		var out bytes.Buffer
		queryLog([]corefile.LogRule{tt.rule}, &out)(rec)
		if diff := cmp.Diff(tt.want, out.String()); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.rule, diff)
		}
	}
	if queryLog(nil, io.Discard) != nil {
		t.Error("without rules there is a log")
	}
}

// TestConsolidate: many alike errors become one line for a period, others pass.
func TestConsolidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var out bytes.Buffer
		h := slog.NewTextHandler(lockedWriter{&mu, &out}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
		log := slog.New(newConsolidator(h, h, []corefile.Consolidate{
			{Period: time.Minute, Pattern: "i/o timeout$", Level: "warning"},
			{Period: time.Minute, Pattern: "^refused", Level: "error", ShowFirst: true},
		}))
		for range 5 {
			log.Warn("query failed", "error", errors.New("read: i/o timeout"))
		}
		log.Warn("query failed", "error", errors.New("refused"))
		log.Warn("query failed", "error", errors.New("something else"))
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		want := "level=WARN msg=\"query failed\" error=refused\nlevel=WARN msg=\"query failed\" error=\"something else\"\n" +
			"level=WARN msg=\"queries failed alike\" count=5 pattern=\"i/o timeout$\" period=1m0s\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// TestContainerLimit reads limits of control groups of both versions; the least one counts.
func TestContainerLimit(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("self2", "0::/kubepods/pod1/c1\n")
	put("v2/kubepods/pod1/memory.max", "201326592\n")
	put("v2/kubepods/pod1/c1/memory.max", "max\n")
	put("v2/kubepods/memory.max", "999999999999\n")
	put("self1", "12:cpu,cpuacct:/x\n7:memory:/kubepods/c1\n")
	put("v1/memory/kubepods/c1/memory.limit_in_bytes", "134217728\n")
	put("v1/memory/memory.limit_in_bytes", "9223372036854771712\n") // no limit, as version 1 writes it
	put("inside", "0::/\n")
	put("v2inside/memory.max", "67108864\n")
	for _, tt := range []struct {
		self, mount string
		want        int64
	}{
		{"self2", "v2", 201326592}, {"self1", "v1", 134217728}, {"inside", "v2inside", 67108864}, {"self2", "v2inside", 0}, {"missing", "v2", 0},
	} {
		mount := filepath.Join(dir, tt.mount)
		if tt.want == 0 && tt.mount == "v2inside" {
			mount = filepath.Join(dir, "nowhere")
		}
		if got := containerLimit(filepath.Join(dir, tt.self), mount); got != tt.want {
			t.Errorf("%s in %s: %d, want %d", tt.self, tt.mount, got, tt.want)
		}
	}
}

// TestCheck: the subcommand prints the effective configuration of the reference Corefile, and every problem of a bad one.
func TestCheck(t *testing.T) {
	var out, errOut bytes.Buffer
	env := environment{lookup: vars(), stdout: &out, stderr: &errOut}
	if err := run(t.Context(), []string{"check", "-cluster-dns", "10.96.0.10", "internal/corefile/reference.corefile"}, env); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "bind 169.254.25.10\n") || !strings.Contains(s, "forward . 10.96.0.10 {") || strings.Contains(s, "__PILLAR__") {
		t.Errorf("effective configuration:\n%s", s)
	}
	out.Reset()
	if err := run(t.Context(), []string{"check", "internal/corefile/reference.corefile"}, env); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "forward . __PILLAR__CLUSTER__DNS__ {") {
		t.Errorf("away from a node the placeholder of the cluster DNS should stay:\n%s", out.String())
	}
	file := filepath.Join(t.TempDir(), "Corefile")
	write(t, file, ". {\ncachee\nforward .\nbind 192.0.2.1\n}\n")
	err := run(t.Context(), []string{"check", file}, env)
	if err == nil || !strings.Contains(err.Error(), file+":2: unknown directive") || !strings.Contains(err.Error(), file+":3: forward:") {
		t.Errorf("problems: %v", err)
	}
	write(t, file, ". {\nbind 192.0.2.1\nforward . 192.0.2.1\n}\n")
	if err := run(t.Context(), []string{"check", file}, env); err == nil || !strings.Contains(err.Error(), file+":3: forward:") {
		t.Errorf("a problem that shows when the parts are made: %v", err)
	}
	if err := run(t.Context(), []string{"check", filepath.Join(t.TempDir(), "missing")}, env); err == nil {
		t.Error("a missing file is accepted")
	}
}

// TestC07LastGood: while a value of the ConfigMap is no JSON the last good version stays; the error is counted once, however
// often the files are looked at.
func TestC07LastGood(t *testing.T) {
	dir := t.TempDir()
	m := ops.NewMetrics(nil, ops.Build{}, nil)
	s := &source{log: slog.New(slog.DiscardHandler), metrics: m, kubeDNS: dir, noted: make(map[string]string)}
	if k := s.readKubeDNS(); k.Stubs != nil || k.Upstreams != nil {
		t.Errorf("empty directory: %+v", k)
	}
	write(t, filepath.Join(dir, "stubDomains"), `{"a.test":["192.0.2.1"]}`)
	good := s.readKubeDNS()
	write(t, filepath.Join(dir, "stubDomains"), `{"a.test":[`)
	for range 3 {
		if diff := cmp.Diff(fmt.Sprint(good), fmt.Sprint(s.readKubeDNS())); diff != "" {
			t.Errorf("with bad JSON:\n%s", diff)
		}
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.SetupErrors())
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP coredns_nodecache_setup_errors_total Errors in the set-up of the node or its configuration, by kind.
# TYPE coredns_nodecache_setup_errors_total counter
coredns_nodecache_setup_errors_total{errortype="configmap"} 1
coredns_nodecache_setup_errors_total{errortype="interface_add"} 0
coredns_nodecache_setup_errors_total{errortype="interface_check"} 0
coredns_nodecache_setup_errors_total{errortype="iptables"} 0
coredns_nodecache_setup_errors_total{errortype="iptables_lock"} 0
`)); err != nil {
		t.Error(err)
	}
}

// TestMetricNames lints every metric of the process.
func TestMetricNames(t *testing.T) {
	problems, err := testutil.GatherAndLint(newMetrics().registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
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

// TestModeIsWaitedFor: without kube-proxy and without -mode the start ends with an error that names the flag, after a bounded
// wait.
func TestModeIsWaitedFor(t *testing.T) {
	o, err := parse("-wait", "50ms", "-kube-proxy", "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	p := &process{o: o, env: quiet(), log: slog.New(slog.DiscardHandler)}
	if _, err := p.mode(t.Context()); !errors.Is(err, node.ErrNoMode) || !strings.Contains(err.Error(), "-mode=auto") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.mode(ctx); interrupted(ctx, err) != nil {
		t.Errorf("interrupted: %v", err)
	}
}

// TestN11ClusterIPIsDropped: in IPVS mode the ClusterIP belongs to kube-ipvs0, also when -localip names it.
func TestN11ClusterIPIsDropped(t *testing.T) {
	o, err := parse("-localip", "169.254.25.10,10.96.0.10")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p := &process{o: o, log: slog.New(slog.NewTextHandler(&log, nil)), cluster: cluster{dns: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}}
	p.dropClusterIPs(node.IPVS)
	if text(o.localIPs) != "169.254.25.10" || !strings.Contains(log.String(), "kube-ipvs0") {
		t.Errorf("local addresses %v, log %s", o.localIPs, log.String())
	}
}
