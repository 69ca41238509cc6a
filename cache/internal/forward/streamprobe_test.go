package forward

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// U04: an upstream that has become slow is asked each question once, over TCP as well, and
// turns nobody away.
func TestU04_SlowUpstreamIsAskedOnce(t *testing.T) {
	t.Parallel()
	const n = 60
	up := newFake(t, func(q *asked) {
		if !q.is("warm.test") {
			<-time.After(500 * time.Millisecond)
		}
		q.send(q.reply(1))
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true})
	f.mustAsk(t, "warm.test", 1, time.Second) // it seems to be quick
	for round := range 3 {
		before := up.count("")
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { f.mustAsk(t, fmt.Sprintf("r%d-%d.test", round, i), 1, 2*time.Second) })
		}
		wg.Wait()
		// A query or two find out that it is the server.
		if got := up.count("") - before; got > n+3 {
			t.Errorf("round %d: %d queries for %d questions", round, got, n)
		}
	}
}

// The same while questions keep coming, beyond what the connections are meant for.
func TestU04_SilentConnectionsTurnNobodyAway(t *testing.T) {
	t.Parallel()
	var late atomic.Bool
	release := make(chan struct{})
	up := newFake(t, func(q *asked) {
		if late.Load() {
			<-release
		}
		q.send(q.reply(1))
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxConns: 2})
	f.mustAsk(t, "warm.test", 1, time.Second)
	late.Store(true)
	var wg sync.WaitGroup
	ask := func(i int) {
		wg.Go(func() { f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 4*time.Second) })
	}
	for i := range 20 {
		ask(i)
	}
	u := (*f.ups.Load())[0]
	eventually(t, "all connections to be silent for long", func() bool {
		u.streams.mu.Lock()
		defer u.streams.mu.Unlock()
		for _, s := range u.streams.streams {
			if s.inflight.Load() > 0 && !s.stalled.Load() {
				return false
			}
		}
		return len(u.streams.streams) > 0
	})
	for i := range 100 {
		ask(20 + i)
	}
	eventually(t, "all questions", func() bool { return up.count("n119.test") > 0 && f.inflight.Load() == 120 })
	close(release)
	wg.Wait()
}

// U04: that our connections are full says nothing about the question.
func TestU04_FullIsBusy(t *testing.T) {
	t.Parallel()
	if !errors.Is(errFull, wire.ErrBusy) {
		t.Error("would be remembered")
	}
	release := make(chan struct{})
	full := newFake(t, func(q *asked) { <-release; q.send(q.reply(1)) }, noUDP)
	dead := newFake(t, answer)
	dead.stop()
	f := start(t, Config{Targets: targets(full, dead), Policy: Sequential, ForceTCP: true, MaxConns: 1, MaxPipeline: 1, MaxFails: 1})
	var wg sync.WaitGroup
	wg.Go(func() { f.mustAsk(t, "a.test", 1, 4*time.Second) })
	eventually(t, "the first query", func() bool { return full.count("a.test") > 0 })
	if _, err := f.ask(t, "b.test"); !errors.Is(err, wire.ErrBusy) {
		t.Errorf("error %v", err)
	}
	if u := (*f.ups.Load())[0]; u.checking.Load() {
		t.Error("counted as a failure of the upstream")
	}
	close(release)
	wg.Wait()
}

// All that is under way on a connection that has become a black hole is answered, soon.
func TestU01_BlackHoleWithManyUnderWay(t *testing.T) {
	t.Parallel()
	var dead atomic.Bool
	up := newFake(t, func(q *asked) {
		if dead.Load() && q.accepts.Load() == 1 {
			return
		}
		q.send(q.reply(1))
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxFails: 1, MaxConns: 1})
	f.mustAsk(t, "first.test", 1, time.Second)
	dead.Store(true)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 900*time.Millisecond) })
	}
	wg.Wait()
	if n := up.count("") - 1; n > 2*20 {
		t.Errorf("%d queries for 20 questions", n)
	}
	if u := (*f.ups.Load())[0]; u.checking.Load() {
		t.Error("counted as a failure of the upstream")
	}
}

// A burst for a server that works through each connection in order, and was quick so far,
// is spread at once: what is sent down one connection cannot be taken back.
func TestBurstIsSpread(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	lines := map[any]*sync.Mutex{}
	up := newFake(t, func(q *asked) {
		mu.Lock()
		if lines[q.tcp] == nil {
			lines[q.tcp] = new(sync.Mutex)
		}
		line := lines[q.tcp]
		mu.Unlock()
		line.Lock()
		defer line.Unlock()
		if !q.is("warm.test") {
			<-time.After(30 * time.Millisecond)
		}
		q.send(q.reply(1))
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true})
	f.mustAsk(t, "warm.test", 1, time.Second)
	var wg sync.WaitGroup
	for i := range 100 { // 3 s down one connection
		wg.Go(func() { f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 1500*time.Millisecond) })
	}
	wg.Wait()
}
