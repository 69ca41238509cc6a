package load_test

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/nodedns/nodedns/e2e/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers questions on UDP as handle says and returns its address.
func serve(t *testing.T, handle dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: conn, Handler: handle}
	done := make(chan error, 1)
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	go func() { done <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := s.ShutdownContext(context.Background()); err != nil {
			t.Error(err)
		}
		<-done
	})
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

func reply(q *dns.Msg, nsid string) *dns.Msg {
	r := new(dns.Msg)
	r.SetReply(q)
	r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 1)}}
	r.SetEdns0(1232, false)
	if nsid != "" {
		r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: nsid}}
	}
	return r
}

// Thirty questions, of which the server leaves five in a row without an answer and answers ten by another server.
func TestRun(t *testing.T) {
	var n atomic.Int32
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		switch i := n.Add(1); {
		case i > 10 && i <= 15:
		case i > 20:
			_ = w.WriteMsg(reply(q, "6e73"))
		default:
			_ = w.WriteMsg(reply(q, ""))
		}
	})
	r, err := load.Run(t.Context(), load.Config{
		Server: addr, Network: "udp", Names: []string{"a.test"}, Rate: 100, Deadline: 300 * time.Millisecond, Limit: 300 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Queries != 30 || r.Failed != 5 || r.Errors["timeout"] != 5 || r.By[load.ByCache] != 15 || r.By[load.ByClusterDNS] != 10 {
		t.Errorf("30 asked, 5 lost, 15 by the cache, 10 by cluster DNS; the result is %+v", r)
	}
	// Five questions, 10 ms apart, are 50 ms; a loaded machine may send one late.
	if r.OutageMS < 30 || r.OutageMS > 250 {
		t.Errorf("the outage is %.1f ms, want about 50", r.OutageMS)
	}
}

// The load does not wait for answers: with a server that never answers, the last question leaves on time.
func TestOpenLoop(t *testing.T) {
	addr := serve(t, func(dns.ResponseWriter, *dns.Msg) {})
	r, err := load.Run(t.Context(), load.Config{
		Server: addr, Network: "udp", Names: []string{"a.test"}, Rate: 50, Deadline: 500 * time.Millisecond, Limit: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Queries != 10 || r.Failed != 10 {
		t.Errorf("ten asked and ten lost; the result is %+v", r)
	}
	if last := r.Answers[9].SentMS; last > 450 {
		t.Errorf("the last question left after %.0f ms, as if it had waited for an answer", last)
	}
	if r.OutageMS < 180 {
		t.Errorf("the outage is %.1f ms, want about 200: it lasted until the end", r.OutageMS)
	}
}

// The end of the context ends the load, but not the questions under way.
func TestEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		cancel()
		_ = w.WriteMsg(reply(q, ""))
	})
	r, err := load.Run(ctx, load.Config{
		Server: addr, Network: "udp", Names: []string{"a.test"}, Rate: 10, Deadline: 5 * time.Second, Limit: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Queries != 1 || r.Failed != 0 {
		t.Errorf("one asked and answered; the result is %+v", r)
	}
}

func TestValidate(t *testing.T) {
	if _, err := load.Run(t.Context(), load.Config{}); err == nil {
		t.Error("an empty configuration passed")
	}
}
