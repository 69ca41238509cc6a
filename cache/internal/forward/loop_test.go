package forward

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// bouncer is an upstream that sends what it gets back to where it came from: to the
// Forward that is set, as the server in front of it would, which asks one question once
// at a time.
type bouncer struct {
	*fake
	flights sync.Map
	on      atomic.Bool
	back    atomic.Pointer[Forward]
	n       atomic.Int32
}

func newBouncer(t *testing.T) *bouncer {
	b := &bouncer{}
	b.fake = newFake(t, func(q *asked) {
		f := b.back.Load()
		if !b.on.Load() || f == nil {
			q.send(q.reply(1))
			return
		}
		b.n.Add(1)
		if _, flying := b.flights.LoadOrStore(q.name(), true); flying {
			return // it waits for the first, which waits for this one
		}
		defer b.flights.Delete(q.name())
		if reply, err := f.Exchange(t.Context(), q.raw); err == nil {
			reply[0], reply[1] = q.raw[0], q.raw[1]
			q.sendRaw(reply)
			return
		}
		m := q.reply(0)
		m.Rcode = dns.RcodeServerFailure
		q.send(m)
	})
	return b
}

// U10: a loop is found at start and named; its zone fails at once and at no cost.
func TestU10_LoopAtStart(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		b := newBouncer(t)
		b.on.Store(true)
		f := start(t, Config{Targets: targets(b.fake), ForceTCP: force, LoopZones: []string{"."}, ReadTimeout: 500 * time.Millisecond})
		b.back.Store(f.Forward)
		eventually(t, "the loop to be found", func() bool {
			f.loops.suspect() // the first round may have come before back was set
			return (*f.ups.Load())[0].loops.Load() != 0
		})
		if !f.log.says("forwarding loop") || !f.log.says(b.addr.String()) {
			t.Error("the log does not name it")
		}
		before := b.n.Load()
		for range 100 {
			if _, err := f.ask(t, "a.test"); !errors.Is(err, wire.ErrLoop) {
				t.Fatalf("error %v", err)
			}
		}
		if b.count("a.test") != 0 || b.n.Load()-before > 3 {
			t.Errorf("%d queries went round", b.n.Load()-before)
		}
		if f.value(t, "nodedns_forward_loop_probes_returned_total", "to", b.addr.String()) < 1 {
			t.Error("not counted")
		}
	}
}

// U10: one that appears later is found when queries fail, and its end as well.
func TestU10_LoopAppears(t *testing.T) {
	t.Parallel()
	b := newBouncer(t)
	f := start(t, Config{Targets: targets(b.fake), LoopZones: []string{"test", "cluster.local."}, ReadTimeout: 100 * time.Millisecond, Timeout: 150 * time.Millisecond})
	b.back.Store(f.Forward)
	f.mustAsk(t, "before.test", 1, time.Second)
	b.on.Store(true)
	eventually(t, "the loop to be found", func() bool {
		_, err := f.ask(t, "during.test")
		return errors.Is(err, wire.ErrLoop)
	})
	b.on.Store(false)
	eventually(t, "the loop to end", func() bool {
		_, err := f.ask(t, "after.test")
		return err == nil
	})
	eventually(t, "the log to say so", func() bool { return f.log.says("forwarding loop has ended") })
	if n := b.n.Load(); n > 300 {
		t.Errorf("%d queries went round", n)
	}
}

// U10: an upstream that is down is not a loop, and a second one that does not loop is
// used alone.
func TestU10_NotALoop(t *testing.T) {
	t.Parallel()
	down := newFake(t, answer)
	down.stop()
	mute := newFake(t, silent)
	f := start(t, Config{Targets: targets(down, mute), LoopZones: []string{"."}, ReadTimeout: 50 * time.Millisecond, Timeout: 100 * time.Millisecond})
	if f.loops.round(t.Context()) {
		t.Error("taken for a loop")
	}
	if _, err := f.ask(t, "a.test"); err == nil || errors.Is(err, wire.ErrLoop) {
		t.Errorf("error %v", err)
	}

	b, good := newBouncer(t), newFake(t, answer)
	b.on.Store(true)
	g := start(t, Config{Targets: targets(b.fake, good), Policy: Sequential, LoopZones: []string{"."}})
	b.back.Store(g.Forward)
	eventually(t, "the loop to be found", func() bool {
		g.loops.suspect()
		return (*g.ups.Load())[0].loops.Load() != 0
	})
	g.mustAsk(t, "a.test", 1, time.Second)
	if good.count("a.test") != 1 || b.count("a.test") != 0 {
		t.Error("the looping upstream was asked")
	}
}

// U10: what one route sends comes back to another one of the same block.
func TestU10_LoopThroughAnotherRoute(t *testing.T) {
	t.Parallel()
	b, probes := newBouncer(t), new(Probes)
	b.on.Store(true)
	other := start(t, Config{Targets: targets(newFake(t, silent)), Probes: probes, LoopZones: []string{"."}, ReadTimeout: 500 * time.Millisecond})
	f := start(t, Config{Targets: targets(b.fake), Probes: probes, LoopZones: []string{"corp.test"}})
	b.back.Store(other.Forward)
	eventually(t, "the loop to be found", func() bool {
		f.loops.suspect()
		_, err := f.ask(t, "a.corp.test")
		return errors.Is(err, wire.ErrLoop)
	})
	if !f.log.says("corp.test") {
		t.Error("the log does not name the zone")
	}
}

// U10: an upstream that sends back one zone is still asked for the others.
func TestU10_LoopOfOneZone(t *testing.T) {
	t.Parallel()
	b := newBouncer(t)
	b.on.Store(true)
	bounce := b.handler
	b.become(func(q *asked) {
		if dns.IsSubDomain("corp.test.", q.name()) {
			bounce(q)
			return
		}
		q.send(q.reply(1))
	})
	f := start(t, Config{Targets: targets(b.fake), LoopZones: []string{".", "corp.test", "a.corp.test."}, ReadTimeout: 500 * time.Millisecond})
	b.back.Store(f.Forward)
	eventually(t, "the loop to be found", func() bool {
		f.loops.suspect()
		return (*f.ups.Load())[0].loops.Load() == 0b110
	})
	for _, name := range []string{"x.corp.test", "corp.test", "X.A.Corp.Test"} {
		if _, err := f.ask(t, name); !errors.Is(err, wire.ErrLoop) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	f.mustAsk(t, "corp.test.example", 1, time.Second)
	f.mustAsk(t, "notcorp.test", 1, time.Second)
}

// A probe is known by its name in any letter case, and only by it.
func TestLoopProbeName(t *testing.T) {
	t.Parallel()
	up := newFake(t, silent)
	f := start(t, Config{Targets: targets(up), LoopZones: []string{"zone.test"}})
	eventually(t, "a probe", func() bool { return up.count("") > 0 })
	up.mu.Lock()
	probe := up.seen[0]
	up.mu.Unlock()
	if !strings.HasSuffix(probe.name(), ".zone.test.") || probe.msg.Question[0].Qtype != dns.TypeHINFO || !probe.msg.RecursionDesired {
		t.Errorf("probe %v", probe.msg.Question[0])
	}
	back := func(name string, qtype uint16) error {
		m := new(dns.Msg)
		m.SetQuestion(name, qtype)
		raw, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		f.cfg.Timeout = time.Millisecond
		_, err = f.Exchange(t.Context(), raw)
		return err
	}
	if err := back(strings.ToUpper(probe.name()), dns.TypeHINFO); !errors.Is(err, wire.ErrLoop) {
		t.Errorf("in upper case: %v", err)
	}
	if err := back("x"+probe.name(), dns.TypeHINFO); errors.Is(err, wire.ErrLoop) {
		t.Error("another name is taken for the probe")
	}
	if err := back(probe.name(), dns.TypeA); errors.Is(err, wire.ErrLoop) {
		t.Error("another type is taken for the probe")
	}
}
