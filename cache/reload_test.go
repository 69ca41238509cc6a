package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestC03BrokenReload: with a broken file the old configuration, its listeners and its health stay, the failure is logged and
// counted, and a good file afterwards takes effect.
func TestC03BrokenReload(t *testing.T) {
	one, two := newUpstream(t, "192.0.2.7"), newUpstream(t, "192.0.2.8")
	health, prom := "127.0.0.1:"+freePort(t), "127.0.0.1:"+freePort(t)
	good := func(up *upstreamServer) string {
		return block(".", up.addr, "cache 30", "health "+health, "prometheus "+prom)
	}
	c := start(t, good(one))
	broken := []struct{ name, text, want string }{
		{"missing brace", strings.TrimSuffix(good(two), "}\n"), "missing }"},
		{"unknown plugin", strings.Replace(good(two), "cache 30", "cachee 30", 1), `unknown directive \"cachee\"`},
		{"bad value", strings.Replace(good(two), "cache 30", "cache 30x", 1), "30x"},
		{"address that cannot be bound", strings.Replace(good(two), "bind 127.0.0.1", "bind 127.0.0.1 203.0.113.1", 1), "203.0.113.1"},
		{"truncated", good(two)[:30], "missing }"},
		{"empty", "", "empty"},
		{"variable that is not set", strings.Replace(good(two), two.addr, "{$NODEDNS_TEST_UNSET}", 1), "NODEDNS_TEST_UNSET"},
		{"cluster DNS unknown", strings.Replace(good(two), two.addr, "__PILLAR__CLUSTER__DNS__", 1), "-cluster-dns"},
		{"upstream is the own address", strings.Replace(good(two), two.addr, "127.0.0.1:"+c.port, 1), "circle"},
		{"CA file missing", strings.Replace(good(two), "forward . "+two.addr, "forward . tls://127.0.0.1 {\n tls missing.pem\n }", 1), "missing.pem"},
	}
	for i, tt := range broken {
		t.Run(tt.name, func(t *testing.T) {
			c.write(tt.text)
			c.reload()
			if s := c.said(); !strings.Contains(s, "reload failed") || !strings.Contains(s, tt.want) {
				t.Errorf("the log lacks %q", tt.want)
			}
			if got := c.ask(fmt.Sprintf("b%d.test", i)); got != "192.0.2.7" {
				t.Errorf("DNS: %s", got)
			}
			if status, _ := get(t, "http://"+health+"/health"); status != 200 {
				t.Errorf("/health: %d", status)
			}
			if status, body := get(t, "http://"+health+"/ready"); status != 200 || !strings.Contains(body, "reload failed: ") {
				t.Errorf("/ready: %d %s", status, body)
			}
			if got := metric(t, prom, "coredns_reload_failed_total"); got != fmt.Sprint(i+1) {
				t.Errorf("coredns_reload_failed_total = %s, want %d", got, i+1)
			}
		})
	}
	if two.count("b0.test.") != 0 {
		t.Error("a broken configuration was used")
	}
	c.write(good(two))
	c.reload()
	if got := c.ask("good.test"); got != "192.0.2.8" {
		t.Errorf("after a good file: %s", got)
	}
	if _, body := get(t, "http://"+health+"/ready"); strings.Contains(body, "reload failed") {
		t.Errorf("/ready still tells of the failure: %s", body)
	}
}

// TestC03CacheKept: what a zone has learned survives a reload that changes other zones, endpoints or logging, and not one
// that changes the zone's own settings.
func TestC03CacheKept(t *testing.T) {
	up, other := newUpstream(t, "192.0.2.7"), newUpstream(t, "192.0.2.8")
	text := block(".", up.addr, "cache 300")
	c := start(t, text)
	expect := func(what string, count int) {
		t.Helper()
		if got := c.ask("kept.test"); got != "192.0.2.7" {
			t.Errorf("%s: %s", what, got)
		}
		if n := up.count("kept.test."); n != count {
			t.Errorf("%s: upstream was asked %d times, want %d", what, n, count)
		}
	}
	expect("first", 1)
	c.write(text + block("new.test", other.addr))
	c.reload()
	if got := c.ask("a.new.test"); got != "192.0.2.8" {
		t.Errorf("the new zone: %s", got)
	}
	expect("a zone was added", 1)
	c.write(strings.Replace(text, " errors\n", " errors\n health 127.0.0.1:"+freePort(t)+"\n loop\n bufsize 1400\n timeouts {\n read 2s\n }\n", 1))
	c.reload()
	expect("endpoints and limits changed", 1)
	c.write(strings.Replace(text, "bind 127.0.0.1", "bind 127.0.0.1 127.0.0.2", 1))
	c.reload()
	expect("an address was added", 1)
	if got := ask(t.Context(), "127.0.0.2:"+c.port, "udp", "kept.test"); got != "192.0.2.7" || up.count("kept.test.") != 1 {
		t.Errorf("on the new address: %s, upstream asked %d times", got, up.count("kept.test."))
	}
	c.write(strings.Replace(text, "cache 300", "cache 200", 1))
	c.reload()
	expect("the cache's own settings changed", 2)
}

// TestC03GaugesStay: the figures of a cache that serves on two addresses stay under their labels, through reloads that keep it
// and through those that fail when everything has been built.
func TestC03GaugesStay(t *testing.T) {
	up := newUpstream(t, "192.0.2.7")
	prom := "127.0.0.1:" + freePort(t)
	text := strings.Replace(block(".", up.addr, "cache 300", "prometheus "+prom), "bind 127.0.0.1", "bind 127.0.0.1 127.0.0.2", 1)
	c := start(t, text)
	if got := c.ask("kept.test"); got != "192.0.2.7" {
		t.Fatal(got)
	}
	series := `coredns_cache_entries{server="dns://127.0.0.1:` + c.port + `",type="success",view="",zones="."}`
	for i, change := range [][2]string{{"", ""}, {" errors\n", " errors\n log\n"}, {"127.0.0.2", "203.0.113.1"}, {" errors\n", " errors\n loadbalance\n"}} {
		c.write(strings.Replace(text, change[0], change[1], 1))
		c.reload()
		if got := metric(t, prom, series); got != "1" {
			t.Errorf("after reload %d: %q entries, want 1", i, got)
		}
	}
}

// TestC03BindSetAndPorts: addresses and ports come and go; those that stay are served throughout.
func TestC03BindSetAndPorts(t *testing.T) {
	up := newUpstream(t, "192.0.2.7")
	one, two := "127.0.0.1:"+freePort(t), "127.0.0.1:"+freePort(t)
	text := block(".", up.addr, "health "+one)
	c := start(t, text)
	port2 := freePort(t)
	c.write(strings.Replace(strings.Replace(text, ".:PORT", ".:PORT .:"+port2, 1), one, two, 1))
	c.reload()
	for _, p := range []string{c.port, port2} {
		for _, network := range []string{"udp", "tcp"} {
			if got := ask(t.Context(), "127.0.0.1:"+p, network, "a.test"); got != "192.0.2.7" {
				t.Errorf("port %s over %s: %s", p, network, got)
			}
		}
	}
	c.eventually("health has moved", func() bool {
		old, _ := get(t, "http://"+one+"/health")
		now, _ := get(t, "http://"+two+"/health")
		return old == 0 && now == 200
	})
	c.write(strings.Replace(text, ".:PORT", ".:"+port2, 1))
	c.reload()
	if got := ask(t.Context(), "127.0.0.1:"+port2, "tcp", "a.test"); got != "192.0.2.7" {
		t.Errorf("the port that stayed: %s", got)
	}
	if conn, err := net.Dial("tcp", "127.0.0.1:"+c.port); err == nil {
		conn.Close()
		t.Error("the port that was dropped still listens")
	}
}

// TestC03NothingIsLost: twenty reloads, good and broken, under steady questions over UDP and TCP.
func TestC03NothingIsLost(t *testing.T) {
	up := newUpstream(t, "192.0.2.7")
	health := "127.0.0.1:" + freePort(t)
	text := block(".", up.addr, "cache 30", "health "+health)
	c := start(t, text)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var sent atomic.Int64
	for i := range 4 {
		network := []string{"udp", "tcp"}[i%2]
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				got := ask(context.WithoutCancel(ctx), "127.0.0.1:"+c.port, network, fmt.Sprintf("w%d-%d.test", i, n))
				sent.Add(1)
				if got != "192.0.2.7" {
					t.Errorf("question %d of worker %d over %s: %s", n, i, network, got)
					return
				}
			}
		})
	}
	for n := range 20 {
		switch n % 3 {
		case 0:
			c.write(strings.Replace(text, "cache 30", fmt.Sprintf("cache %d", 31+n), 1))
		case 1:
			c.write(text[:20])
		case 2:
			c.write(strings.Replace(text, "bind 127.0.0.1", "bind 127.0.0.1 127.0.0.2", 1))
		}
		c.reload()
		if status, body := get(t, "http://"+health+"/health"); status != 200 {
			t.Errorf("reload %d: /health: %d %s", n, status, body)
		}
	}
	cancel()
	wg.Wait()
	if n := sent.Load(); n < 40 {
		t.Errorf("only %d questions were asked", n)
	}
}

// TestC03ChangedForward: forty reloads that each replace the upstream, under load that has it ask all the time. Nothing fails
// because the way it was about to take is closed.
func TestC03ChangedForward(t *testing.T) {
	up := newUpstream(t, "192.0.2.7")
	text := func(n int) string {
		return block(".", fmt.Sprintf("%s {\n force_tcp\n expire %ds\n }", up.addr, 10+n), "cache 30")
	}
	c := start(t, text(0))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var sent, lost atomic.Int64
	for i := range 48 {
		network := []string{"udp", "udp", "tcp"}[i%3]
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				got := ask(context.WithoutCancel(ctx), "127.0.0.1:"+c.port, network, fmt.Sprintf("w%d-%d.test", i, n))
				if sent.Add(1); got != "192.0.2.7" && lost.Add(1) < 5 {
					t.Errorf("question %d of worker %d over %s: %s", n, i, network, got)
				}
			}
		})
	}
	for n := range 40 {
		c.write(text(n + 1))
		c.reload()
	}
	cancel()
	wg.Wait()
	if sent.Load() < 400 || lost.Load() > 0 {
		t.Errorf("%d questions, %d of them lost", sent.Load(), lost.Load())
	}
}

// TestC03TerminatedWhileReloading: SIGTERM right behind a reload ends the process cleanly.
func TestC03TerminatedWhileReloading(t *testing.T) {
	up := newUpstream(t, "192.0.2.7")
	text := block(".", up.addr, "cache 30")
	for i := range 5 {
		c := start(t, text)
		c.write(strings.Replace(text, "bind 127.0.0.1", "bind 127.0.0.1 127.0.0.2", 1))
		c.signal(syscall.SIGUSR1)
		time.Sleep(time.Duration(i) * time.Millisecond)
		c.signal(syscall.SIGTERM)
		if code := c.exits(); code != 0 {
			t.Errorf("exit code %d:\n%s", code, c.said())
		}
	}
}

// TestReloadDirective: without any signal the file is looked at as often as reload says.
func TestReloadDirective(t *testing.T) {
	one, two := newUpstream(t, "192.0.2.7"), newUpstream(t, "192.0.2.8")
	c := start(t, block(".", one.addr, "reload 2s 0s"))
	c.write(block(".", two.addr, "reload 2s 0s"))
	n := 0
	c.eventually("the change takes effect", func() bool { n++; return c.ask(fmt.Sprintf("n%d.test", n)) == "192.0.2.8" })
}

// TestU07ResolvConf: a resolv.conf without servers is no reason not to start; the other zones work, and the root zone does as
// soon as the file names a server.
func TestU07ResolvConf(t *testing.T) {
	cluster := newUpstream(t, "192.0.2.9")
	for name, text := range map[string]string{"empty": "", "comments": "# nameserver 192.0.2.1\n; comment\n", "options only": "options ndots:5\nnameserver\n"} {
		t.Run(name, func(t *testing.T) {
			dir, port := t.TempDir(), freePort(t)
			resolv := filepath.Join(dir, "resolv.conf")
			write(t, resolv, text)
			write(t, filepath.Join(dir, "Corefile"), strings.ReplaceAll(block("cluster.local", cluster.addr)+block(".", "__PILLAR__UPSTREAM__SERVERS__"), "PORT", port))
			c := launch(t, dir, port, nil, "-conf", "Corefile", "-resolv-conf", resolv)
			c.waitReady()
			if got := c.ask("a.cluster.local"); got != "192.0.2.9" {
				t.Errorf("cluster name: %s", got)
			}
			if got := c.ask("a.test"); got != "SERVFAIL" {
				t.Errorf("other name: %s", got)
			}
		})
	}
}

// TestU10OwnAddressAsUpstream: the node's resolv.conf names the cache itself: the process starts, the root zone fails at once,
// and the cluster's names are not touched by it.
func TestU10OwnAddressAsUpstream(t *testing.T) {
	cluster := newUpstream(t, "192.0.2.9")
	dir := t.TempDir()
	resolv := filepath.Join(dir, "resolv.conf")
	write(t, resolv, "nameserver 127.0.0.1\n")
	port := freePort(t)
	write(t, filepath.Join(dir, "Corefile"), strings.ReplaceAll(block("cluster.local", cluster.addr)+block(".", resolv), "PORT", port))
	c := launch(t, dir, port, nil, "-conf", "Corefile")
	c.waitReady()
	if got := c.ask("a.cluster.local"); got != "192.0.2.9" {
		t.Errorf("cluster name: %s", got)
	}
	begin := time.Now()
	if got := c.ask("a.test"); got != "SERVFAIL" || time.Since(begin) > 3*time.Second {
		t.Errorf("other name: %s after %v", got, time.Since(begin))
	}
}

// TestReloadLeaksNothing: many reloads that replace zones, upstreams and endpoints leave no goroutine behind.
func TestReloadLeaksNothing(t *testing.T) {
	up := newUpstream(t, "192.0.2.7")
	prom := "127.0.0.1:" + freePort(t)
	text := block(".", up.addr, "cache 30 {\n prefetch 1\n serve_stale\n }", "loop", "prometheus "+prom)
	c := start(t, text)
	variant := func(n int) string {
		return strings.Replace(strings.Replace(text, "cache 30", fmt.Sprintf("cache %d", 30+n), 1), "bind 127.0.0.1", fmt.Sprintf("bind 127.0.0.1 127.0.0.%d", 2+n%3), 1)
	}
	goroutines := func() int {
		n, err := strconv.Atoi(metric(t, prom, "go_goroutines"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	round := func(from, to int) int {
		for n := from; n < to; n++ {
			c.write(variant(n))
			c.reload()
			if got := c.ask(fmt.Sprintf("r%d.test", n)); got != "192.0.2.7" {
				t.Errorf("reload %d: %s", n, got)
			}
		}
		return goroutines()
	}
	before := round(1, 4)
	after := round(4, 25)
	if after > before+5 {
		t.Errorf("%d goroutines after 3 reloads, %d after 24", before, after)
	}
}
