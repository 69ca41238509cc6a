package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
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
	"github.com/nodedns/nodedns/cache/internal/node"
	"github.com/nodedns/nodedns/cache/internal/ops"
	"github.com/nodedns/nodedns/cache/internal/resolve"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

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

// TestCheckKnowsTheNode: check refuses what a start with the same flags would refuse.
func TestCheckKnowsTheNode(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "Corefile")
	env := environment{lookup: vars(), stdout: io.Discard, stderr: io.Discard}
	check := func(args ...string) string {
		if err := run(t.Context(), append(append([]string{"check"}, args...), file), env); err != nil {
			return err.Error()
		}
		return ""
	}
	write(t, file, ". {\nbind 127.0.0.1\nforward . 192.0.2.1\n}\n")
	if got := check(); !strings.Contains(got, "no server block of the Corefile binds 169.254.25.10:53,") {
		t.Errorf("the local address is not bound: %q", got)
	}
	if got := check("-localip=127.0.0.1"); got != "" {
		t.Error(got)
	}
	if got := check("-localip=127.0.0.1", "-cluster-dns=10.96.0.10", "-mode=nftables"); !strings.Contains(got, "binds 10.96.0.10:53,") {
		t.Errorf("the ClusterIP is not bound: %q", got)
	}
	if got := check("-localip=127.0.0.1", "-cluster-dns=10.96.0.10", "-mode=ipvs"); got != "" {
		t.Error(got)
	}
	if got := check("-setupinterface=false", "-setupiptables=false"); got != "" {
		t.Errorf("without a node to set up: %s", got)
	}
	write(t, file, ". {\nbind 169.254.25.10\nforward . 192.0.2.9\n}\n")
	if got := check("-localip=169.254.25.10,10.96.0.10", "-cluster-dns=10.96.0.10", "-mode=ipvs"); got != "" {
		t.Errorf("with the ClusterIP in -localip, as in the incumbent's manifests: %s", got)
	}
	write(t, file, ". {\nbind nodelocaldns\nforward . 192.0.2.9\n}\n")
	if got := check(); got != "" {
		t.Errorf("bound by the name of the interface: %s", got)
	}
	write(t, filepath.Join(dir, "stubDomains"), "{")
	if got := check("-kubednscm=" + dir); !strings.Contains(got, "stubDomains") {
		t.Errorf("stub domains that are no JSON: %q", got)
	}
	if err := run(t.Context(), []string{"check", file, "-mode=ipvs"}, env); err == nil || !strings.Contains(err.Error(), "the flags and then one argument") {
		t.Errorf("flags after the file: %v", err)
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
