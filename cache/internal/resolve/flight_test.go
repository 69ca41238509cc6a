package resolve

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// panicky is an upstream with a bug that shows while on is set.
type panicky struct {
	upstreamFunc
	on atomic.Bool
}

func (p *panicky) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	time.Sleep(time.Millisecond)
	if p.on.Load() {
		panic("index out of range")
	}
	return p.upstreamFunc.Exchange(ctx, query)
}

// TestPanicLandsTheFlight: those who joined it get a failure at once, and the next one asks
// anew.
func TestPanicLandsTheFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &panicky{upstreamFunc: answers(t, "a.test. 60 IN A 192.0.2.1")}
		up.on.Store(true)
		r := newTestRouter(t, nil, up)
		query := packedQuery("a.test.", dns.TypeA, false, false)
		go func() {
			defer func() {
				if recover() == nil { // as package listen does
					t.Error("the panic is hidden from who counts it")
				}
			}()
			answer(t.Context(), r, query, client(wire.UDP))
		}()
		time.Sleep(time.Microsecond)
		start := time.Now()
		if m := ask(t, r, query, client(wire.UDP)); m.Rcode != dns.RcodeServerFailure || time.Since(start) > time.Millisecond {
			t.Errorf("who joined waits %v for %v", time.Since(start), m)
		}
		up.on.Store(false)
		if m := ask(t, r, query, client(wire.UDP)); len(m.Answer) != 1 {
			t.Errorf("the next one gets %v", m)
		}
	})
}

// TestPanicOfARenewal neither ends the process nor keeps the answer from being renewed
// later.
func TestPanicOfARenewal(t *testing.T) {
	for _, verify := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			up := &panicky{upstreamFunc: answers(t, "a.test. 5 IN A 192.0.2.1")}
			r := newTestRouter(t, func(c *ZoneConfig) {
				c.Cache.Stale = StaleConfig{For: time.Hour, Verify: verify}
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
			}, up)
			query := packedQuery("a.test.", dns.TypeA, false, false)
			ask(t, r, query, client(wire.UDP))
			time.Sleep(time.Minute)
			up.on.Store(true)
			start := time.Now()
			if m := ask(t, r, query, client(wire.UDP)); len(m.Answer) != 1 || time.Since(start) > time.Millisecond {
				t.Errorf("verify %v: after %v %v", verify, time.Since(start), m)
			}
			time.Sleep(time.Minute) // past the rest
			synctest.Wait()
			z := r.sites[0].zone
			if z.extra.panics.Load() != 1 || !strings.Contains(log.String(), "index out of range") {
				t.Errorf("verify %v: %d panics counted, log %q", verify, z.extra.panics.Load(), log.String())
			}
			up.on.Store(false)
			ask(t, r, query, client(wire.UDP))
			synctest.Wait()
			time.Sleep(time.Second)
			if m := ask(t, r, query, client(wire.UDP)); len(m.Answer) != 1 || m.Answer[0].Header().Ttl > 5 {
				t.Errorf("verify %v: not renewed: %v", verify, m)
			}
		})
	}
}

// TestVerifyIsForAll: everybody who asks while a stale answer is verified waits for the new
// one, and nobody longer than the first.
func TestVerifyIsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newScriptUpstream()
		up.set(t, []string{"a.test.", "A"}, []string{"answer a.test. 5 IN A 192.0.2.1"})
		r := newTestRouter(t, func(c *ZoneConfig) { c.Cache.Stale = StaleConfig{For: time.Hour, Verify: true} }, up)
		query := packedQuery("a.test.", dns.TypeA, false, false)
		ask(t, r, query, client(wire.UDP))
		burst := func(apart time.Duration) (replies map[string]int, last time.Duration) {
			replies = make(map[string]int)
			results := make(chan string)
			start := time.Now()
			for i := range 10 {
				go func() {
					time.Sleep(time.Duration(i) * apart)
					results <- ask(t, r, query, client(wire.UDP)).Answer[0].(*dns.A).A.String()
				}()
			}
			for range 10 {
				replies[<-results]++
			}
			return replies, time.Since(start)
		}
		time.Sleep(time.Minute)
		up.set(t, []string{"a.test.", "A", "delay=2ms"}, []string{"answer a.test. 5 IN A 192.0.2.2"})
		up.asked()
		if got, _ := burst(0); got["192.0.2.2"] != 10 {
			t.Errorf("replies %v", got)
		}
		if asked := strings.Count(up.asked(), "asked"); asked != 1 {
			t.Errorf("upstream was asked %d times", asked)
		}
		time.Sleep(time.Minute)
		up.set(t, []string{"a.test.", "A"}, []string{"hang"})
		if got, took := burst(300 * time.Millisecond); got["192.0.2.2"] != 10 || took > 2700*time.Millisecond {
			t.Errorf("with a silent upstream: %v after %v", got, took)
		}
	})
}

// TestClosedUpstreamIsNotRemembered: that this side has closed the way to the upstream says
// nothing about the upstream.
func TestClosedUpstreamIsNotRemembered(t *testing.T) {
	for _, closed := range []error{wire.ErrClosed, net.ErrClosed} {
		up := failing{fmt.Errorf("asking 192.0.2.53 over tcp: %w", closed)}
		r := newTestRouter(t, nil, up)
		query := packedQuery("a.test.", dns.TypeA, false, false)
		if m := ask(t, r, query, client(wire.UDP)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("reply %v", m)
		}
		if n := r.sites[0].zone.store.Len(store.Denial); n != 0 {
			t.Errorf("%v: %d failures remembered", closed, n)
		}
	}
}

type failing struct{ err error }

func (f failing) Exchange(context.Context, []byte) ([]byte, error) { return nil, f.err }

// TestP18_ReplyToAnotherQuestion: the room forward drops it; if one comes through all
// the same it is neither delivered nor stored.
func TestP18_ReplyToAnotherQuestion(t *testing.T) {
	for what, question := range map[string]dns.Question{
		"name":  {Name: "victim.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET},
		"type":  {Name: "attacker.test.", Qtype: dns.TypeAAAA, Qclass: dns.ClassINET},
		"class": {Name: "attacker.test.", Qtype: dns.TypeA, Qclass: dns.ClassCHAOS},
	} {
		s := store.New(store.Config{})
		r := newTestRouter(t, func(c *ZoneConfig) { c.Store, c.Cache.ServFail = s, -1 }, upstreamFunc(func(q *dns.Msg) *dns.Msg {
			m := answers(t, "victim.test. 60 IN A 192.0.2.66")(q)
			m.Question[0] = question
			return m
		}))
		m := ask(t, r, packedQuery("attacker.test.", dns.TypeA, false, false), client(wire.UDP))
		if m.Rcode != dns.RcodeServerFailure || len(m.Answer) > 0 {
			t.Errorf("other %s: delivered %v", what, m)
		}
		if n := s.Len(store.Success) + s.Len(store.Denial); n > 0 {
			t.Errorf("other %s: stored", what)
		}
		if n := r.sites[0].zone.extra.drops.Load(); n != 1 {
			t.Errorf("other %s: %d drops counted", what, n)
		}
	}
}

// TestU04_InflightLimit: past it answers come at once, stale ones if there are any.
func TestU04_InflightLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRouter(t, func(c *ZoneConfig) { c.MaxInflight, c.Cache.Stale.For = 2, time.Hour }, upstreamFunc(func(q *dns.Msg) *dns.Msg {
			if q.Question[0].Name == "hot.test." {
				return answers(t, "hot.test. 5 IN A 192.0.2.1")(q)
			}
			time.Sleep(time.Second)
			return answers(t, q.Question[0].Name+" 60 IN A 192.0.2.1")(q) // outlives the test: its renewal would fill a place
		}))
		query := func(name string) []byte { return packedQuery(name, dns.TypeA, false, false) }
		ask(t, r, query("hot.test."), client(wire.UDP))
		time.Sleep(10 * time.Second)
		var busy atomic.Int32
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				start := time.Now()
				if m := ask(t, r, query(fmt.Sprintf("n%d.test.", i)), client(wire.UDP)); m.Rcode == dns.RcodeServerFailure {
					busy.Add(1)
					if d := time.Since(start); d > 0 {
						t.Errorf("refused after %s", d)
					}
				}
			})
		}
		synctest.Wait()
		if m := ask(t, r, query("hot.test."), client(wire.UDP)); len(m.Answer) != 1 {
			t.Errorf("stale answer: %v", m)
		}
		wg.Wait()
		if n := busy.Load(); n != 8 {
			t.Errorf("%d of 10 refused, want 8", n)
		}
		time.Sleep(500 * time.Millisecond)
		for i := range 10 {
			if m := ask(t, r, query(fmt.Sprintf("n%d.test.", i)), client(wire.UDP)); m.Rcode != dns.RcodeSuccess {
				t.Errorf("n%d later: %v", i, m)
			}
		}
	})
}

// TestCloseEndsBackgroundWork: a refresh that hangs ends with the zone, and none begins
// after; whoever waits for the same question gets an answer still.
func TestCloseEndsBackgroundWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newScriptUpstream()
		up.set(t, []string{"hot.test.", "A"}, []string{"answer hot.test. 5 IN A 192.0.2.1"})
		r := newTestRouter(t, func(c *ZoneConfig) { c.Cache.Stale.For = time.Hour }, up)
		q := packedQuery("hot.test.", dns.TypeA, false, false)
		ask(t, r, q, client(wire.UDP))
		time.Sleep(10 * time.Second)
		up.set(t, []string{"hot.test.", "A"}, []string{"hang"})
		ask(t, r, q, client(wire.UDP))
		synctest.Wait()
		start := time.Now()
		r.Close()
		if d := time.Since(start); d > 0 {
			t.Errorf("Close took %s", d)
		}
		up.asked()
		if m := ask(t, r, q, client(wire.UDP)); len(m.Answer) != 1 {
			t.Errorf("after Close: %v", m)
		}
		synctest.Wait()
		if asked := up.asked(); asked != "" {
			t.Errorf("after Close: %s", asked)
		}
	})
}

// TestWaiterOutlivesLeader: a client that goes away does not take the answer with it.
func TestWaiterOutlivesLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newScriptUpstream()
		up.set(t, []string{"slow.test.", "A", "delay=1s"}, []string{"answer slow.test. 60 IN A 192.0.2.1"})
		r := newTestRouter(t, nil, up)
		q := packedQuery("slow.test.", dns.TypeA, false, false)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.Resolve(ctx, make([]byte, 4096), q, client(wire.TCP)) })
		synctest.Wait()
		wg.Go(func() {
			if m := ask(t, r, q, client(wire.UDP)); len(m.Answer) != 1 {
				t.Errorf("the one who waited gets %v", m)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
	})
}
