package probe

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serveDNS answers on one loopback port over UDP and, if tcp, over TCP until the test ends.
func serveDNS(t *testing.T, tcp bool, h dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	var pc net.PacketConn
	var servers []*dns.Server
	for {
		var err error
		if pc, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		servers = []*dns.Server{{PacketConn: pc, Handler: h}}
		if !tcp {
			break
		}
		l, err := net.Listen("tcp", pc.LocalAddr().String())
		if err == nil {
			servers = append(servers, &dns.Server{Listener: l, Handler: h})
			break
		}
		pc.Close() // somebody has the number over TCP: another one
	}
	for _, s := range servers {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		done := make(chan error, 1)
		go func() { done <- s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := s.Shutdown(); err != nil {
				t.Error(err)
			}
			<-done
		})
	}
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

func answerNonce(name string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0] == (dns.Question{Name: name, Qtype: dns.TypeTXT, Qclass: dns.ClassCHAOS}) {
			m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassCHAOS}, Txt: []string{"here"}}}
		} else {
			m.Rcode = dns.RcodeRefused
		}
		_ = w.WriteMsg(m)
	}
}

func TestProve(t *testing.T) {
	name := NewName()
	addr := serveDNS(t, true, answerNonce(name))
	p := New(Config{Addrs: []netip.AddrPort{addr}, Name: name})
	if err := p.Prove(t.Context()); err != nil {
		t.Error(err)
	}
	if p.Name() != name {
		t.Errorf("Name() = %q", p.Name())
	}
}

// TestProveFails: every kind of wrong answer is told from the right one, with address and transport.
func TestProveFails(t *testing.T) {
	name := NewName()
	right := answerNonce(name)
	for _, tt := range []struct {
		name    string
		tcp     bool
		handler dns.HandlerFunc
		want    []string
	}{
		{"another server", true, answerNonce("other.probe.nodedns."), []string{"over udp: the reply is from another server", "over tcp: the reply is from another server"}},
		{"no TCP", false, right, []string{"over tcp"}},
		{"silence over UDP", true, func(w dns.ResponseWriter, q *dns.Msg) {
			if w.LocalAddr().Network() == "tcp" {
				right(w, q)
			}
		}, []string{"over udp: no reply"}},
		{"silence over TCP", true, func(w dns.ResponseWriter, q *dns.Msg) {
			if w.LocalAddr().Network() == "udp" {
				right(w, q)
			}
		}, []string{"over tcp: no reply"}},
		{"no answer in it", true, func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(q)) }, []string{"no answer"}},
		{"another question", true, func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg).SetReply(q)
			m.Question[0].Qtype = dns.TypeA
			_ = w.WriteMsg(m)
		}, []string{"another question"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := serveDNS(t, tt.tcp, tt.handler)
			ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
			defer cancel()
			err := New(Config{Addrs: []netip.AddrPort{addr}, Name: name}).Prove(ctx)
			if err == nil {
				t.Fatal("proved")
			}
			for _, w := range append(tt.want, addr.String()) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

// TestProveRepeats: one lost packet is nobody's fault.
func TestProveRepeats(t *testing.T) {
	name := NewName()
	right := answerNonce(name)
	var lost atomic.Bool
	addr := serveDNS(t, true, func(w dns.ResponseWriter, q *dns.Msg) {
		if w.LocalAddr().Network() == "udp" && lost.CompareAndSwap(false, true) {
			return
		}
		right(w, q)
	})
	if err := New(Config{Addrs: []netip.AddrPort{addr}, Name: name}).Prove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestProveSlow: a cache that answers late, but does, is alive. Replies to somebody else's question in between change nothing.
func TestProveSlow(t *testing.T) {
	name := NewName()
	right := answerNonce(name)
	for _, late := range []time.Duration{100 * time.Millisecond, 250 * time.Millisecond, 450 * time.Millisecond, 900 * time.Millisecond} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			var first atomic.Bool
			addr := serveDNS(t, true, func(w dns.ResponseWriter, q *dns.Msg) {
				if w.LocalAddr().Network() == "udp" && first.CompareAndSwap(false, true) {
					stray := new(dns.Msg).SetReply(q)
					stray.Id++
					_ = w.WriteMsg(stray)
				}
				time.Sleep(late)
				right(w, q)
			})
			if err := New(Config{Addrs: []netip.AddrPort{addr}, Name: name}).Prove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestProveNothing(t *testing.T) {
	if err := New(Config{}).Prove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestQueryIsDNS: the packed query is what a DNS library reads.
func TestQueryIsDNS(t *testing.T) {
	p := New(Config{})
	var m dns.Msg
	if err := m.Unpack(p.query); err != nil {
		t.Fatal(err)
	}
	if q := m.Question[0]; q.Name != p.Name() || q.Qtype != dns.TypeTXT || q.Qclass != dns.ClassCHAOS || m.RecursionDesired {
		t.Errorf("query: %v", &m)
	}
}

// TestMark: with the right to do so, the sockets carry the mark.
func TestMark(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("REQUIRE_KERNEL") == "1" {
			t.Fatal("needs root to set SO_MARK")
		}
		t.Skip("needs root to set SO_MARK")
	}
	p := New(Config{Mark: 0x1035})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, network := range []string{"udp", "tcp"} {
		conn, err := p.dial(t.Context(), network, netip.MustParseAddrPort(l.Addr().String()))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var mark int
		if err := raw.Control(func(fd uintptr) { mark, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK) }); err != nil {
			t.Fatal(err)
		}
		if err != nil || mark != 0x1035 {
			t.Errorf("%s: mark %#x, %v", network, mark, err)
		}
		conn.Close()
	}
}

func TestCheckShortReplies(t *testing.T) {
	q, err := New(Config{}).newQuery()
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(q) {
		if check(q, q[:n]) == nil {
			t.Errorf("a reply of %d octets is accepted", n)
		}
	}
	r := append([]byte(nil), q...)
	r[2] |= 0x80
	binary.BigEndian.PutUint16(r[6:], 1)
	if err := check(q, r); err != nil {
		t.Errorf("the shortest right reply: %v", err)
	}
}
