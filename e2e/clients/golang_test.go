package clients_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestGoResolver asks with Go's own resolver, which asks with EDNS and turns to TCP for truncated replies.
func TestGoResolver(t *testing.T) {
	need(t)
	r := &net.Resolver{PreferGo: true}
	for _, c := range []struct {
		network, name string
		want          string
	}{
		{"ip4", "a.test.", "192.0.2.1"}, {"ip6", "a.test.", "2001:db8::1"}, {"ip", "alias.test.", "192.0.2.1 2001:db8::1"},
		{"ip", "v4.test.", "192.0.2.4"}, {"ip4", "A.TEST.", "192.0.2.1"}, {"ip4", "slow.test.", "192.0.2.9"},
	} {
		addrs, err := r.LookupNetIP(t.Context(), c.network, c.name)
		var got []string
		for _, a := range addrs {
			got = append(got, a.Unmap().String())
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want || err != nil {
			t.Errorf("%s %s: %v, %v; want %s", c.network, c.name, got, err, c.want)
		}
	}
	if txt, err := r.LookupTXT(t.Context(), "big.test."); err != nil || len(txt) != 40 {
		t.Errorf("big.test: %d texts, %v; want 40, over TCP", len(txt), err)
	}
	if ptr, err := r.LookupAddr(t.Context(), "192.0.2.1"); err != nil || !slices.Equal(ptr, []string{"a.test."}) {
		t.Errorf("192.0.2.1: %v, %v", ptr, err)
	}
	for name, notFound := range map[string]bool{"nothing.test.": true, "bogus.test.": false} {
		_, err := r.LookupNetIP(t.Context(), "ip4", name)
		if fault, ok := errors.AsType[*net.DNSError](err); !ok || fault.IsNotFound != notFound || fault.IsTimeout {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

// TestPipelining asks several questions on one connection without waiting; the slow one does not hold up the others (RFC
// 7766 section 6.2.1.1), and half a close is no reason to drop it.
func TestPipelining(t *testing.T) {
	need(t)
	c, err := net.Dial("tcp", server+":53")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	var all []byte
	slow := fmt.Sprintf("n%d.slow.test.", rand.Uint32()) // asked by nobody before
	names := []string{slow, "a.test.", "v4.test.", "nothing.test.", "big.test."}
	for i, name := range names {
		m := new(dns.Msg).SetQuestion(name, dns.TypeTXT)
		m.Id = uint16(i)
		raw, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		all = append(binary.BigEndian.AppendUint16(all, uint16(len(raw))), raw...)
	}
	for _, octet := range all { // as a client without buffers does
		if _, err := c.Write([]byte{octet}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var order []string
	for conn := (&dns.Conn{Conn: c}); ; {
		m, err := conn.ReadMsg()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if int(m.Id) >= len(names) || m.Question[0].Name != names[m.Id] {
			t.Errorf("reply %d is to %v", m.Id, m.Question)
		}
		order = append(order, m.Question[0].Name)
	}
	if len(order) != len(names) || order[len(order)-1] != slow {
		t.Errorf("replies in order %v", order)
	}
}
