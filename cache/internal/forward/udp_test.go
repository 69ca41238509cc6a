package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestUDP(t *testing.T) {
	t.Parallel()
	up := newFake(t, answer)
	f := start(t, Config{Targets: targets(up)})
	for i := range 5 {
		f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 2*time.Second)
	}
	if n := f.value(t, "coredns_proxy_request_duration_seconds", "rcode", "NOERROR", "to", up.addr.String(), "proxy_name", "forward"); n != 5 {
		t.Errorf("coredns_proxy_request_duration_seconds counts %v, want 5", n)
	}
	if hits, misses := f.value(t, "coredns_proxy_conn_cache_hits_total", "proto", "udp"), f.value(t, "coredns_proxy_conn_cache_misses_total", "proto", "udp"); hits+misses != 5 || misses < 1 {
		t.Errorf("sockets reused %v times, opened %v times", hits, misses)
	}
}

// P18: a packet that answers another question is no answer, whatever its ID.
func TestP18_OtherQuestion(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		for name, bend := range map[string]func(*dns.Msg){
			"name":     func(m *dns.Msg) { m.Question[0].Name = "victim.test."; m.Answer[0].Header().Name = "victim.test." },
			"type":     func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA },
			"class":    func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
			"id":       func(m *dns.Msg) { m.Id ^= 1 },
			"a query":  func(m *dns.Msg) { m.Response = false },
			"opcode":   func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify },
			"two":      func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) },
			"none":     func(m *dns.Msg) { m.Question = nil },
			"the root": func(m *dns.Msg) { m.Question[0].Name = "." },
			"longer":   func(m *dns.Msg) { m.Question[0].Name = "x." + m.Question[0].Name },
		} {
			t.Run(fmt.Sprintf("%s/tcp=%v", name, force), func(t *testing.T) {
				t.Parallel()
				up := newFake(t, func(q *asked) {
					bad := q.reply(1)
					bad.Answer[0].(*dns.A).A = net.IPv4(192, 0, 2, 66)
					bend(bad)
					q.send(bad)
					if q.name() == "then-good.test." {
						q.send(q.reply(1))
					}
				})
				f := start(t, Config{Targets: targets(up), ForceTCP: force, Timeout: 500 * time.Millisecond, ReadTimeout: 400 * time.Millisecond})
				m := f.mustAsk(t, "then-good.test", 1, 2*time.Second)
				if got := m.Answer[0].(*dns.A).A.String(); got != "192.0.2.1" {
					t.Errorf("the bad packet was taken: %s", got)
				}
				if m, err := f.ask(t, "never-good.test"); !isTimeout(err) {
					t.Errorf("reply %v, error %v", m, err)
				}
				if f.value(t, "nodedns_forward_ignored_replies_total") < 2 {
					t.Error("ignored packets are not counted")
				}
			})
		}
	}
}

// P18 (c): letter case does not make it another question.
func TestP18_LetterCase(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		up := newFake(t, func(q *asked) {
			m := q.reply(1)
			m.Question[0].Name = strings.ToUpper(q.name())
			q.send(m)
		})
		f := start(t, Config{Targets: targets(up), ForceTCP: force})
		f.mustAsk(t, "mixed-Case_09.test", 1, 2*time.Second)
	}
}

// Only letters fold: '@' and '`', '[' and '{' differ by the same bit.
func TestOnlyLettersFold(t *testing.T) {
	t.Parallel()
	q, ok := readQuery(packed(t, `a\@z\[.test`))
	if !ok {
		t.Fatal("not read")
	}
	same := append([]byte(nil), q.msg...)
	same[2] |= 0x80
	if !q.answeredBy(same) {
		t.Error("its own question does not match")
	}
	for i := headerLen + 1; i < q.end-5; i++ {
		bent := append([]byte(nil), same...)
		bent[i] ^= 0x20
		letter := 'a' <= same[i]|0x20 && same[i]|0x20 <= 'z'
		if q.answeredBy(bent) != letter {
			t.Errorf("octet %q against %q: match is %v", same[i], bent[i], !letter)
		}
	}
}

// U02: a late answer to an older query, junk before the answer, another source.
func TestU02_LateAnswer(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var old *asked
	up := newFake(t, func(q *asked) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case q.is("old.test"):
			old = q
		case old != nil:
			late := old.reply(1)
			for _, port := range []net.Addr{old.from, q.from} { // wherever it may be taken for an answer
				q2 := *old
				q2.from = port
				q2.send(late)
			}
			q.send(q.reply(2))
		}
	})
	f := start(t, Config{Targets: targets(up), ReadTimeout: 100 * time.Millisecond, Timeout: 150 * time.Millisecond})
	if _, err := f.ask(t, "old.test"); !isTimeout(err) {
		t.Fatalf("error %v", err)
	}
	f.cfg.Timeout, f.cfg.ReadTimeout = 3*time.Second, 3*time.Second
	f.mustAsk(t, "new.test", 2, 2*time.Second)
}

func TestU02_Junk(t *testing.T) {
	t.Parallel()
	up := newFake(t, func(q *asked) {
		for i := range uint16(50) {
			m := q.reply(1)
			m.Id += i + 1
			q.send(m)
		}
		for _, raw := range [][]byte{{}, {1}, q.raw[:2], q.raw[:11]} {
			q.sendRaw(raw)
		}
		q.send(q.reply(2))
	})
	f := start(t, Config{Targets: targets(up)})
	f.mustAsk(t, "a.test", 2, 2*time.Second)
}

func TestU02_OtherSource(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	up := newFake(t, func(q *asked) {
		for _, host := range []string{"127.0.0.1", "127.0.0.2"} { // another port, another address
			other, err := net.ListenPacket("udp4", host+":0")
			if err != nil {
				t.Error(err)
				return
			}
			raw, _ := q.reply(1).Pack()
			other.WriteTo(raw, q.from)
			other.Close()
		}
		<-release
		q.send(q.reply(2))
	})
	f := start(t, Config{Targets: targets(up)})
	time.AfterFunc(100*time.Millisecond, func() { close(release) })
	f.mustAsk(t, "a.test", 2, 2*time.Second)
}

// Junk does not extend the deadline.
func TestU02_JunkDoesNotExtend(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		up := newFake(t, func(q *asked) {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for range 60 {
				<-tick.C
				m := q.reply(1)
				m.Question[0].Name = "other.test."
				q.send(m)
			}
		})
		f := start(t, Config{Targets: targets(up), ForceTCP: force, Timeout: 400 * time.Millisecond, ReadTimeout: 200 * time.Millisecond})
		began := time.Now()
		if _, err := f.ask(t, "a.test"); !isTimeout(err) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("gave up after %v", took)
		}
	}
}

// P29: what does not fit or cannot be read over UDP is asked for again over TCP.
func TestP29_RetryOverTCP(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(q *asked){
		"truncated and empty": func(q *asked) { m := q.reply(0); m.Truncated = true; q.send(m) },
		"truncated in part":   func(q *asked) { m := q.reply(3); m.Truncated = true; q.send(m) },
		"cut in a record": func(q *asked) {
			m := q.reply(20)
			m.Truncated = true
			raw, _ := m.Pack()
			q.sendRaw(raw[:len(raw)-7])
		},
		"cut without TC": func(q *asked) {
			raw, _ := q.reply(20).Pack()
			q.sendRaw(raw[:len(raw)-7])
		},
		"counts too high": func(q *asked) {
			raw, _ := q.reply(2).Pack()
			raw[7] = 200
			q.sendRaw(raw)
		},
	} {
		handler := func(q *asked) {
			if q.tcp == nil {
				first(q)
				return
			}
			q.send(q.reply(255))
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, Config{Targets: targets(newFake(t, handler))})
			if m := f.mustAsk(t, "a.test", 255, 2*time.Second); m.Truncated {
				t.Error("TC is set on the whole answer")
			}
		})
		t.Run(name+"/no TCP", func(t *testing.T) {
			t.Parallel()
			f := start(t, Config{Targets: targets(newFake(t, handler, noTCP))})
			raw, err := f.Exchange(t.Context(), packed(t, "a.test"))
			if err != nil {
				t.Fatal(err)
			}
			if !isTruncated(raw) {
				t.Errorf("a partial answer without TC: %x", raw)
			}
		})
	}
}

// P29: a datagram of any size is read whole.
func TestP29_AnySize(t *testing.T) {
	t.Parallel()
	for _, n := range []int{80, 200, 4000} { // 1.4 kB, 3.3 kB, 64 kB
		up := newFake(t, func(q *asked) { q.send(q.reply(n)) }, noTCP)
		f := start(t, Config{Targets: targets(up)})
		f.mustAsk(t, "a.test", n, 2*time.Second)
	}
}

func TestLargestTCPReply(t *testing.T) {
	t.Parallel()
	up := newFake(t, func(q *asked) {
		raw, _ := q.reply(0).Pack()
		q.sendRaw(append(raw, make([]byte, maxMessage-len(raw))...))
	})
	f := start(t, Config{Targets: targets(up), ForceTCP: true})
	raw, err := f.Exchange(t.Context(), packed(t, "a.test"))
	if err != nil || len(raw) != maxMessage {
		t.Errorf("%d octets, %v", len(raw), err)
	}
}

// An upstream that is not there says so at once (ICMP), and the next one is asked.
func TestRefusedPort(t *testing.T) {
	t.Parallel()
	dead := newFake(t, answer)
	dead.stop()
	up := newFake(t, answer)
	f := start(t, Config{Targets: targets(dead, up), Policy: Sequential})
	f.mustAsk(t, "a.test", 1, time.Second)
	alone := start(t, Config{Targets: targets(dead)})
	if _, err := alone.ask(t, "a.test"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error %v", err)
	}
}

// RFC 5452: the source ports of queries are many and follow no pattern; under load, where
// sockets are used again, as well.
func TestSourcePorts(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ports, ids := map[int]int{}, map[uint16]int{}
	up := newFake(t, func(q *asked) {
		mu.Lock()
		ports[q.from.(*net.UDPAddr).Port]++
		ids[q.msg.Id]++
		mu.Unlock()
		q.send(q.reply(1))
	})
	f := start(t, Config{Targets: targets(up)})
	const n = 2000
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range n / 8 {
				if _, err := f.Exchange(context.Background(), packed(t, fmt.Sprintf("n%d-%d.test", w, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	over := 0
	for _, uses := range ports {
		if uses > udpUses {
			over++
		}
	}
	// The kernel may choose a port again that an earlier socket had: of 250 draws of 28,000 about one.
	if over > 8 {
		t.Errorf("%d ports carried more than %d queries", over, udpUses)
	}
	if len(ports) < n/udpUses-8 {
		t.Errorf("%d ports for %d queries", len(ports), n)
	}
	// One after the other, too: the port of the last query is rarely that of the next.
	seen, repeated, last := map[int]bool{}, 0, 0
	const inTurn = 200
	up.become(func(q *asked) {
		mu.Lock()
		port := q.from.(*net.UDPAddr).Port
		seen[port] = true
		if port == last {
			repeated++
		}
		last = port
		mu.Unlock()
		q.send(q.reply(1))
	})
	mu.Unlock()
	for i := range inTurn {
		f.mustAsk(t, fmt.Sprintf("turn%d.test", i), 1, time.Second)
	}
	mu.Lock()
	if len(seen) < inTurn/udpUses || repeated > inTurn/4 {
		t.Errorf("%d ports for %d queries in turn, %d times the last one again", len(seen), inTurn, repeated)
	}
	// 2000 random draws of 65536: 30 repeated ones are expected.
	if len(ids) < n-100 {
		t.Errorf("%d different IDs for %d queries", len(ids), n)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		got := make(chan struct{}, 1)
		up := newFake(t, func(*asked) { got <- struct{}{} })
		f := start(t, Config{Targets: targets(up), ForceTCP: force})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-got; cancel() }()
		began := time.Now()
		_, err := f.Exchange(ctx, packed(t, "a.test"))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("returned after %v", took)
		}
	}
}
