package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestLoopZones: each forward is probed for the zones whose names go to it, and for no others.
func TestLoopZones(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{". {\n loop\n forward . 192.0.2.1\n}\n", "[.]"},
		{". {\n forward . 192.0.2.1\n}\n", "[]"},
		{". {\n loop\n forward corp.test 192.0.2.1\n forward . 192.0.2.2\n}\n", "[corp.test.] [.]"},
		{"cluster.local in-addr.arpa ip6.arpa {\n loop\n forward . 192.0.2.1\n}\n", "[cluster.local. in-addr.arpa. ip6.arpa.]"},
		{". corp.test:54 {\n loop\n forward corp.test 192.0.2.1\n forward . 192.0.2.2\n}\n", "[corp.test.] [.]"},
		{". a.test {\n loop\n forward . 192.0.2.1 {\n except a.test\n }\n}\n", "[.]"},
		{"a.test b.test other.example {\n loop\n forward test 192.0.2.1\n}\n", "[a.test. b.test.]"},
	} {
		cfg := parsed(t, tt.text)
		var got []string
		for _, f := range cfg.Blocks[0].Forward {
			got = append(got, fmt.Sprint(loopZones(cfg.Blocks[0], f)))
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.text, got, tt.want)
		}
	}
}

// TestMaxIdleConns: max_idle_conns bounds what is kept idle, not what is opened, as in CoreDNS.
func TestMaxIdleConns(t *testing.T) {
	block := parsed(t, ". {\n forward . 192.0.2.1 {\n max_idle_conns 1\n }\n}\n").Blocks[0]
	cfg, err := testBuilder().forwardConfig(block, block.Forward[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MaxIdleConns != 1 || cfg.MaxConns != 0 {
		t.Errorf("idle %d, all %d", cfg.MaxIdleConns, cfg.MaxConns)
	}
}

// TestU10_ConditionalLoop: an upstream of a conditional forward that sends its questions back here is found and named, and
// the other forward goes on.
func TestU10_ConditionalLoop(t *testing.T) {
	good := newUpstream(t, "192.0.2.8")
	port := freePort(t)
	_, packets := listenBoth(t)
	back := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if reply, err := dns.Exchange(q, "127.0.0.1:"+port); err == nil {
			reply.Id = q.Id
			_ = w.WriteMsg(reply)
		}
	})}
	go func() { _ = back.ActivateAndServe() }()
	t.Cleanup(func() { _ = back.Shutdown() })
	addr := packets.LocalAddr().(fmt.Stringer).String()

	dir := t.TempDir()
	text := ".:" + port + " {\n bind 127.0.0.1\n errors\n loop\n forward corp.test " + addr + "\n forward . " + good.addr + "\n}\n"
	write(t, filepath.Join(dir, "Corefile"), text)
	c := launch(t, dir, port, nil, "-conf", "Corefile")
	c.waitReady()
	c.eventually("the loop to be named", func() bool {
		return slices.ContainsFunc(strings.Split(c.said(), "\n"), func(line string) bool {
			return strings.Contains(line, "forwarding loop: ") && strings.Contains(line, addr) && strings.Contains(line, "corp.test.")
		})
	})
	began := time.Now()
	if got := c.ask("a.corp.test"); got != "SERVFAIL" || time.Since(began) > time.Second {
		t.Errorf("in the loop: %s after %v", got, time.Since(began))
	}
	if got := c.ask("a.test"); got != "192.0.2.8" {
		t.Errorf("the other forward: %s", got)
	}
}
