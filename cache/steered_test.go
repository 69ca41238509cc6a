package main

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/nodedns/nodedns/cache/internal/listen"
	"github.com/nodedns/nodedns/e2e/house"
)

// TestSteeredAddressDropped: a reload that would unbind an address to which the rules lead questions fails like any other bad
// one, and the node goes on answering.
func TestSteeredAddressDropped(t *testing.T) {
	nodeNamespace(t)
	c := launchOnNode(t, nodeCorefile)
	c.waitReady()
	c.eventually("in service", func() bool { return strings.Contains(house.Page("169.254.25.10:8181", "/ready"), "lease: on") })
	failures := 0
	for what, change := range map[string][2]string{
		"another address": {"bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__", "bind 127.0.0.1"},
		"one of the two":  {"bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__", "bind __PILLAR__LOCAL__DNS__"},
		"another port":    {".:53 {", ".:5353 {"},
	} {
		c.write(strings.Replace(nodeCorefile, change[0], change[1], 1))
		c.reload()
		if failures++; strings.Count(c.said(), "no server block of the Corefile binds") != failures {
			t.Errorf("%s: no word of it", what)
		}
		for _, addr := range []string{"169.254.25.10:53", "10.96.0.10:53"} {
			if got := ask(t.Context(), addr, "udp", "a.test"); got != "192.0.2.7" {
				t.Errorf("%s: %s answers %s", what, addr, got)
			}
		}
		if body := house.Page("169.254.25.10:8181", "/ready"); !strings.Contains(body, "200 OK") || !strings.Contains(body, "reload failed") {
			t.Errorf("%s: /ready says %s", what, body)
		}
	}
}

// TestProofAsksSteeredAddresses: an address that questions are led to and nobody serves is no proof.
func TestProofAsksSteeredAddresses(t *testing.T) {
	b := testBuilder()
	port := freePort(t)
	r, err := b.build(parsed(t, ".:"+port+" {\nbind 127.0.0.1\nwhoami\n}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(slog.New(slog.DiscardHandler), listen.NewMetrics(nil))
	if err := s.apply(r); err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	p := &proof{server: s, name: b.nonce}
	if err := p.Prove(t.Context()); err != nil {
		t.Error(err)
	}
	s.steered = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:" + port), netip.MustParseAddrPort("127.0.0.2:" + port)}
	if err := p.Prove(t.Context()); err == nil || !strings.Contains(err.Error(), "127.0.0.2:"+port) {
		t.Errorf("proved, though nobody answers at the steered address: %v", err)
	}
	if err := s.apply(r); err == nil {
		t.Error("a configuration that leaves a steered address out is applied")
	}
}
