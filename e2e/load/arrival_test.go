package load

import (
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// The time of an answer is that of its arrival, however late the client comes to read it.
func TestArrival(t *testing.T) {
	keep, err := keepStamping()
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := stamp(conn); err != nil {
		t.Fatal(err)
	}
	q := Question("a.test")
	answer := new(dns.Msg)
	answer.SetReply(q)
	stranger := answer.Copy()
	stranger.Id++ // somebody else's answer does not count
	before := time.Now()
	for _, m := range []*dns.Msg{stranger, answer} {
		wire, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.WriteTo(wire, conn.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	arrived := time.Now() // on the loopback, sending is arriving
	// Waiting is the point: the client is late.
	time.Sleep(30 * time.Millisecond)
	r, at, err := receive(conn, q)
	if err != nil || r.Id != q.Id {
		t.Fatalf("the answer: %v, %v", r, err)
	}
	if at.Before(before.Add(-time.Millisecond)) || at.After(arrived.Add(time.Millisecond)) {
		t.Errorf("arrived at %s, not between %s and %s", at, before, arrived)
	}
}
