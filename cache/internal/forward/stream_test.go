package forward

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A server that works through a connection in order: one slow query does not hold up the
// others for long, also when few connections may be kept idle.
func TestSlowQueryHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, idle := range []int{0, 1} {
		t.Run(fmt.Sprint(idle), func(t *testing.T) {
			t.Parallel()
			up, release := inOrder(t)
			f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxIdleConns: idle})
			defer release()
			for i := range 20 { // it is known to be quick
				f.mustAsk(t, fmt.Sprintf("w%d.test", i), 1, time.Second)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			wg.Go(func() { f.Exchange(ctx, packed(t, "slow.test")) })
			eventually(t, "the slow query", func() bool { return up.count("slow.test") > 0 })
			for i := range 5 {
				f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, time.Second)
			}
		})
	}
}

// inOrder is an upstream that answers the queries of a connection one after the other,
// and slow.test when released.
func inOrder(t *testing.T) (up *fake, release func()) {
	var mu sync.Mutex
	busy := map[net.Conn]*sync.Mutex{}
	released := make(chan struct{})
	up = newFake(t, func(q *asked) {
		mu.Lock()
		if busy[q.tcp] == nil {
			busy[q.tcp] = new(sync.Mutex)
		}
		line := busy[q.tcp]
		mu.Unlock()
		line.Lock()
		defer line.Unlock()
		if q.is("slow.test") {
			<-released
		}
		q.send(q.reply(1))
	}, noUDP)
	return up, func() { close(released) }
}

// Connections beyond max_idle_conns end with their last reply, and not before.
func TestMaxIdleConns(t *testing.T) {
	t.Parallel()
	const n = 4
	var gate sync.WaitGroup
	gate.Add(n)
	up := newFake(t, func(q *asked) {
		if q.name()[0] == 'w' { // all at once, so on many connections
			gate.Done()
			gate.Wait()
		}
		q.send(q.reply(1))
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxIdleConns: 1, Expire: time.Hour})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f.mustAsk(t, fmt.Sprintf("w%d.test", i), 1, 4*time.Second) })
	}
	wg.Wait()
	before := up.accepts.Load()
	if before < 2 {
		t.Fatalf("only %d connections to begin with", before)
	}
	p := (*f.ups.Load())[0].streams
	open := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.streams)
	}
	eventually(t, "the others to end", func() bool { return open() == 1 })
	for i := range 10 {
		f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, time.Second)
	}
	if n := up.accepts.Load(); n != before {
		t.Errorf("%d new connections although one was kept", n-before)
	}
	if n := p.idle.Load(); n != 1 {
		t.Errorf("%d counted as idle, want 1", n)
	}
	up.restartTCP()
	eventually(t, "none to be open", func() bool { return open() == 0 })
	if n := p.idle.Load(); n != 0 {
		t.Errorf("%d counted as idle, want none", n)
	}
}

// A connection that takes its time to close, as TLS may, keeps nobody else waiting.
func TestSlowCloseHoldsUpNobody(t *testing.T) {
	t.Parallel()
	f := start(t, Config{Targets: targets(newFake(t, answer))})
	for name, end := range map[string]func(*stream){
		"failed": func(s *stream) { s.fail(errGone) },
		"swept":  func(s *stream) { s.closing.Store(true); s.sweep() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream((*f.ups.Load())[0].streams, 1)
			s.timer.Stop()
			c := slowConn{closing: make(chan struct{}), release: make(chan struct{})}
			s.conn = c
			ended, added := make(chan struct{}), make(chan error, 1)
			go func() { end(s); close(ended) }()
			<-c.closing
			go func() { added <- s.add(new(call)) }()
			select {
			case err := <-added:
				if !errors.Is(err, errStale) {
					t.Errorf("error %v", err)
				}
			case <-time.After(2 * time.Second):
				t.Error("a query waits for the close")
			}
			close(c.release)
			<-ended
		})
	}
}

// slowConn closes only when it may.
type slowConn struct {
	net.Conn
	closing, release chan struct{}
}

func (c slowConn) Close() error {
	close(c.closing)
	<-c.release
	return nil
}

// Many queries share few connections; answers come in any order and find their askers.
func TestPipelining(t *testing.T) {
	t.Parallel()
	const n, workers = 4000, 100
	var inflight, most atomic.Int32
	up := newFake(t, func(q *asked) {
		now := inflight.Add(1)
		for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
		}
		for range int(q.msg.Id) % 7 {
			runtime.Gosched()
		}
		inflight.Add(-1)
		q.send(q.reply(1))
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxConns: 4})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range n / workers {
				f.mustAsk(t, fmt.Sprintf("n%d-%d.test", w, i), 1, 4*time.Second)
			}
		})
	}
	wg.Wait()
	hits, misses := f.value(t, "coredns_proxy_conn_cache_hits_total", "proto", "tcp"), f.value(t, "coredns_proxy_conn_cache_misses_total", "proto", "tcp")
	// On a machine that stands still for longer than our patience a few are asked again.
	again := int(hits+misses) - n
	if again < 0 || again > n/10 {
		t.Errorf("%v hits and %v misses for %d queries", hits, misses, n)
	}
	conns := up.accepts.Load()
	if int(conns) > 4+again || misses != float64(conns) {
		t.Errorf("%d connections, at most 4 allowed; %v misses", conns, misses)
	}
	if got := up.count(""); got < n || got > n+again {
		t.Errorf("%d queries reached the upstream, want %d", got, n)
	}
}

func TestMaxPipeline(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	up := newFake(t, func(q *asked) {
		<-release
		q.send(q.reply(1))
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxConns: 1, MaxPipeline: 4})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 4*time.Second) })
	}
	eventually(t, "four queries", func() bool { return up.count("") >= 4 })
	if _, err := f.ask(t, "one-more.test"); !errors.Is(err, errFull) {
		t.Errorf("error %v", err)
	}
	close(release)
	wg.Wait()
}

func TestExpire(t *testing.T) {
	t.Parallel()
	up := newFake(t, answer, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true, Expire: 100 * time.Millisecond})
	open := func() int {
		p := (*f.ups.Load())[0].streams
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.streams)
	}
	f.mustAsk(t, "a.test", 1, time.Second)
	if open() != 1 {
		t.Errorf("%d connections after a query", open())
	}
	eventually(t, "the idle connection to end", func() bool { return open() == 0 })
	f.mustAsk(t, "b.test", 1, time.Second)
}

// Garbage in the framing ends the connection and fails the query, soon.
func TestGarbageOverTCP(t *testing.T) {
	t.Parallel()
	for name, garbage := range map[string][]byte{
		"too short": {0, 3, 1, 2, 3},
		"empty":     {0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			up := newFake(t, func(q *asked) { q.tcp.Write(garbage) }, noUDP)
			f := start(t, Config{Targets: targets(up), ForceTCP: true})
			began := time.Now()
			if _, err := f.ask(t, "a.test"); err == nil {
				t.Error("no error")
			}
			if took := time.Since(began); took > 2*time.Second || up.count("") > 2 {
				t.Errorf("%d queries in %v", up.count(""), took)
			}
		})
	}
}

// A reply may come in any pieces, several in one.
func TestRepliesInPieces(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 3, 100, 5000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			up := newFake(t, func(q *asked) {
				raw, _ := q.reply(300).Pack()
				out := append(binary.BigEndian.AppendUint16(nil, uint16(len(raw))), raw...)
				for len(out) > 0 {
					n := min(size, len(out))
					if _, err := q.tcp.Write(out[:n]); err != nil {
						return
					}
					out = out[n:]
				}
			}, noUDP)
			f := start(t, Config{Targets: targets(up), ForceTCP: true})
			f.mustAsk(t, "a.test", 300, 5*time.Second)
			f.mustAsk(t, "b.test", 300, 5*time.Second)
		})
	}
}
