package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestMetricNames(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg)
	m.target(Target{}).observe(0, time.Second)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// U11: health checks take the transport of the queries, so that an upstream without UDP
// is not down for it, and one without TCP is.
func TestU11_ConfiguredTransport(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		t.Run(fmt.Sprintf("force_tcp=%v", force), func(t *testing.T) {
			t.Parallel()
			var broken atomic.Bool
			var probes atomic.Int32
			option := noTCP
			if force {
				option = noUDP
			}
			up := newFake(t, func(q *asked) {
				if q.is(".") {
					probes.Add(1)
				}
				switch {
				case !broken.Load():
					q.send(q.reply(1))
				case q.tcp != nil:
					q.tcp.(*net.TCPConn).SetLinger(0)
					q.tcp.Close()
				}
			}, option)
			f := start(t, Config{
				Targets: targets(up), ForceTCP: force, MaxFails: 2, FailFast: true,
				HealthInterval: 20 * time.Millisecond, ReadTimeout: 100 * time.Millisecond, Timeout: 200 * time.Millisecond,
			})
			f.mustAsk(t, "a.test", 1, time.Second)
			broken.Store(true)
			if _, err := f.ask(t, "b.test"); err == nil {
				t.Fatal("no error")
			}
			u := (*f.ups.Load())[0]
			eventually(t, "the upstream to be down", u.down)
			if _, err := f.ask(t, "c.test"); !errors.Is(err, wire.ErrNoUpstream) {
				t.Errorf("error %v", err)
			}
			if f.value(t, "coredns_proxy_healthcheck_failures_total") < 2 || f.value(t, "coredns_forward_healthcheck_broken_total") < 1 {
				t.Error("not counted")
			}
			broken.Store(false)
			eventually(t, "the upstream to be back", func() bool { return !u.down() && !u.checking.Load() })
			f.mustAsk(t, "d.test", 1, time.Second)
			if probes.Load() < 3 {
				t.Errorf("%d health checks", probes.Load())
			}
		})
	}
}

// U11: any reply is a sign of life, and passed on.
func TestU11_AnyReplyIsAlive(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		for _, rcode := range []int{dns.RcodeRefused, dns.RcodeServerFailure, dns.RcodeNotImplemented, dns.RcodeFormatError} {
			up := newFake(t, func(q *asked) {
				m := q.reply(0)
				m.Rcode = rcode
				q.send(m)
			})
			f := start(t, Config{Targets: targets(up), ForceTCP: force, MaxFails: 1})
			if m := f.mustAsk(t, "a.test", 0, time.Second); m.Rcode != rcode {
				t.Errorf("rcode %d, want %d", m.Rcode, rcode)
			}
			if u := (*f.ups.Load())[0]; !u.probe() || u.checking.Load() {
				t.Errorf("rcode %d counts as dead", rcode)
			}
		}
	}
}

// A refusal without a question section is a reply too, and is given one.
func TestRefusalWithoutQuestion(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		up := newFake(t, func(q *asked) {
			raw := make([]byte, headerLen)
			binary.BigEndian.PutUint16(raw, q.msg.Id)
			raw[2], raw[3] = 0x81, 0x80|dns.RcodeFormatError
			q.sendRaw(raw)
		})
		f := start(t, Config{Targets: targets(up), ForceTCP: force})
		if m := f.mustAsk(t, "a.test", 0, time.Second); m.Rcode != dns.RcodeFormatError {
			t.Errorf("rcode %d", m.Rcode)
		}
	}
}

// U11: with garbage from all upstreams, few packets and an error in time.
func TestU11_Garbage(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		garbage := func(q *asked) {
			raw := binary.BigEndian.AppendUint16(nil, q.msg.Id)
			raw = append(raw, 0x81, 0x80, 0, 1, 0, 5, 0, 0, 0, 0)
			for range 9 {
				raw = append(raw, 0xc0, 0x0c)
			}
			q.sendRaw(raw)
		}
		a, b := newFake(t, garbage), newFake(t, garbage)
		f := start(t, Config{Targets: targets(a, b), ForceTCP: force, ReadTimeout: 200 * time.Millisecond, Timeout: 480 * time.Millisecond})
		began := time.Now()
		if _, err := f.ask(t, "a.test"); !isTimeout(err) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("error after %v", took)
		}
		if n := a.count("a.test") + b.count("a.test"); n > 8 {
			t.Errorf("%d packets for one query", n)
		}
	}
}

// U11: silent upstreams are given up within 5 s, with the defaults.
func TestU11_Silence(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		t.Run(fmt.Sprintf("force_tcp=%v", force), func(t *testing.T) {
			t.Parallel()
			a, b := newFake(t, silent), newFake(t, silent)
			f := start(t, Config{Targets: targets(a, b), ForceTCP: force, MaxFails: DefaultMaxFails})
			began := time.Now()
			if _, err := f.ask(t, "a.test"); !isTimeout(err) {
				t.Errorf("error %v", err)
			}
			if took := time.Since(began); took > 5*time.Second || took < 4*time.Second {
				t.Errorf("gave up after %v", took)
			}
			if n := a.count("a.test") + b.count("a.test"); n < 2 || n > 8 {
				t.Errorf("%d packets for one query", n)
			}
		})
	}
}

// A single upstream that loses a packet is asked twice.
func TestLostPacket(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	up := newFake(t, func(q *asked) {
		if n.Add(1) > 1 {
			q.send(q.reply(1))
		}
	})
	f := start(t, Config{Targets: targets(up), ReadTimeout: 100 * time.Millisecond})
	f.mustAsk(t, "a.test", 1, 2*time.Second)
}

func TestHealthQuery(t *testing.T) {
	t.Parallel()
	got := make(chan *asked, 10)
	up := newFake(t, func(q *asked) { got <- q; answer(q) })
	for _, tc := range []struct {
		cfg   Config
		name  string
		recur bool
	}{
		{Config{}, ".", true},
		{Config{HealthNoRec: true, HealthDomain: "example.org"}, "example.org.", false},
	} {
		tc.cfg.Targets = targets(up)
		f := start(t, tc.cfg)
		if !(*f.ups.Load())[0].probe() {
			t.Error("dead")
		}
		q := <-got
		if q.name() != tc.name || q.msg.RecursionDesired != tc.recur || q.msg.Question[0].Qtype != dns.TypeNS {
			t.Errorf("health check asks %v", q.msg.Question[0])
		}
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	const n = 60
	for policy, check := range map[Policy]func(counts []int) bool{
		Sequential: func(c []int) bool { return c[0] == n },
		RoundRobin: func(c []int) bool { return c[0] == n/3 && c[1] == n/3 && c[2] == n/3 },
		Random:     func(c []int) bool { return c[0] > 3 && c[1] > 3 && c[2] > 3 },
	} {
		ups := []*fake{newFake(t, answer), newFake(t, answer), newFake(t, answer)}
		f := start(t, Config{Targets: targets(ups...), Policy: policy})
		for i := range n {
			f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, time.Second)
		}
		counts := []int{ups[0].count(""), ups[1].count(""), ups[2].count("")}
		if !check(counts) || counts[0]+counts[1]+counts[2] != n {
			t.Errorf("policy %d: %v", policy, counts)
		}
	}
}

// One that is down is left out until it replies again.
func TestDownIsLeftOut(t *testing.T) {
	t.Parallel()
	var dead atomic.Bool
	dead.Store(true)
	a := newFake(t, func(q *asked) {
		if !dead.Load() {
			answer(q)
		}
	})
	b := newFake(t, answer)
	f := start(t, Config{
		Targets: targets(a, b), Policy: Sequential, MaxFails: 1,
		ReadTimeout: 100 * time.Millisecond, HealthInterval: 20 * time.Millisecond,
	})
	f.mustAsk(t, "first.test", 1, 2*time.Second)
	eventually(t, "a to be down", (*f.ups.Load())[0].down)
	for i := range 10 {
		f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 90*time.Millisecond)
	}
	dead.Store(false)
	eventually(t, "a to be back", func() bool { return !(*f.ups.Load())[0].down() })
	before := a.count("again.test")
	f.mustAsk(t, "again.test", 1, time.Second)
	if a.count("again.test") == before {
		t.Error("a is not asked")
	}
}

// With all upstreams down they are tried all the same: it may be the health checks that
// fail. With FailFast they are not.
func TestAllDown(t *testing.T) {
	t.Parallel()
	for _, failFast := range []bool{false, true} {
		up := newFake(t, func(q *asked) {
			if !q.is(".") { // only health checks fail
				answer(q)
			}
		})
		f := start(t, Config{Targets: targets(up), MaxFails: 1, FailFast: failFast})
		(*f.ups.Load())[0].fails.Store(5)
		_, err := f.ask(t, "a.test")
		if failFast != errors.Is(err, wire.ErrNoUpstream) || !failFast && err != nil {
			t.Errorf("failfast %v: %v", failFast, err)
		}
		if n := f.value(t, "coredns_forward_healthcheck_broken_total"); n != 1 {
			t.Errorf("coredns_forward_healthcheck_broken_total %v, want 1", n)
		}
	}
}

func TestFailover(t *testing.T) {
	t.Parallel()
	refuse := func(q *asked) {
		m := q.reply(0)
		m.Rcode = dns.RcodeRefused
		q.send(m)
	}
	a, b := newFake(t, refuse), newFake(t, answer)
	f := start(t, Config{Targets: targets(a, b), Policy: Sequential, Failover: []int{dns.RcodeRefused}})
	f.mustAsk(t, "a.test", 1, time.Second)
	b.become(refuse)
	if m := f.mustAsk(t, "b.test", 0, time.Second); m.Rcode != dns.RcodeRefused {
		t.Errorf("rcode %d", m.Rcode)
	}
	if a.count("b.test") != 1 || b.count("b.test") != 1 {
		t.Errorf("asked %d and %d times", a.count("b.test"), b.count("b.test"))
	}
}

// A storm of failures starts one health check, not many.
func TestOneHealthCheckAtATime(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int32
	release := make(chan struct{})
	up := newFake(t, func(q *asked) {
		if q.is(".") {
			most.Store(max(most.Load(), now.Add(1)))
			<-release
			now.Add(-1)
		}
	})
	f := start(t, Config{Targets: targets(up), MaxFails: 2, ReadTimeout: 50 * time.Millisecond, Timeout: 100 * time.Millisecond})
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() { f.ask(t, fmt.Sprintf("n%d.test", i)) })
	}
	wg.Wait()
	close(release)
	if most.Load() != 1 {
		t.Errorf("%d health checks at a time", most.Load())
	}
}
