package forward

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// U01: a pooled connection that has died costs the next query nothing but a new
// connection, whatever it died of, and says nothing about the upstream.
func TestU01_DeadPooledConnection(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(net.Conn){
		"FIN":        func(c net.Conn) { c.Close() },
		"RST":        func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Close() },
		"half close": func(c net.Conn) { c.(*net.TCPConn).CloseWrite() },
	} {
		for _, when := range []string{"idle", "on the next query"} {
			t.Run(name+"/"+when, func(t *testing.T) {
				t.Parallel()
				var mu sync.Mutex
				used := map[net.Conn]bool{}
				up := newFake(t, func(q *asked) {
					mu.Lock()
					again := used[q.tcp]
					used[q.tcp] = true
					mu.Unlock()
					if again {
						end(q.tcp)
						return
					}
					q.send(q.reply(1))
					if when == "idle" {
						end(q.tcp)
					}
				}, noUDP)
				f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxFails: 1})
				for i := range 5 {
					f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, time.Second)
				}
				u := (*f.ups.Load())[0]
				if u.fails.Load() != 0 || u.checking.Load() || f.value(t, "coredns_proxy_healthcheck_failures_total") != 0 {
					t.Error("counted as a failure of the upstream")
				}
			})
		}
	}
}

func TestU01_Restart(t *testing.T) {
	t.Parallel()
	up := newFake(t, answer, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxFails: 1})
	for i := range 5 {
		f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, time.Second)
		up.restartTCP()
	}
}

// Ten pooled connections, all dead: they are not tried one by one.
func TestU01_TenDead(t *testing.T) {
	t.Parallel()
	const n = 10
	var gate sync.WaitGroup
	gate.Add(n)
	up := newFake(t, func(q *asked) {
		if q.msg.Question[0].Name[0] == 'w' { // warm up: all at once, so on many connections
			gate.Done()
			gate.Wait()
		}
		q.send(q.reply(1))
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxConns: n, MaxFails: 1})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f.mustAsk(t, fmt.Sprintf("w%d.test", i), 1, 5*time.Second) })
	}
	wg.Wait()
	before := up.accepts.Load()
	if before < 3 {
		t.Fatalf("only %d connections to begin with", before)
	}
	up.restartTCP()
	for i := range n {
		wg.Go(func() { f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 2*time.Second) })
	}
	wg.Wait()
	if more := up.accepts.Load() - before; more > n {
		t.Errorf("%d new connections for %d queries", more, n)
	}
}

// A server that serves one query a connection and hangs up on the others under way.
func TestU01_OneQueryPerConnection(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	used := map[net.Conn]bool{}
	up := newFake(t, func(q *asked) {
		mu.Lock()
		defer mu.Unlock()
		if used[q.tcp] {
			return
		}
		used[q.tcp] = true
		q.send(q.reply(1))
		q.tcp.Close()
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 3*time.Second) })
	}
	wg.Wait()
}

// A connection that has become a black hole (its server is gone, and nobody says so)
// holds its queries up for a moment only.
func TestU01_BlackHole(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var hole net.Conn
	up := newFake(t, func(q *asked) {
		mu.Lock()
		dead := q.tcp == hole
		if hole == nil {
			hole = q.tcp
		}
		mu.Unlock()
		if !dead {
			q.send(q.reply(1))
		}
	}, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true, MaxFails: 1})
	f.mustAsk(t, "first.test", 1, time.Second)
	f.mustAsk(t, "second.test", 1, time.Second)
	f.mustAsk(t, "third.test", 1, 250*time.Millisecond) // nobody goes near it any more
	if u := (*f.ups.Load())[0]; u.checking.Load() {
		t.Error("counted as a failure of the upstream")
	}
}
