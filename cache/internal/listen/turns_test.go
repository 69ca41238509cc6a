package listen

import (
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// Clients that never pause over TCP, whether they read or not, leave the processors to
// those who ask over UDP.
func TestTCPFloodLeavesRoom(t *testing.T) {
	const clients = 50
	var now, most, hits atomic.Int32
	r := start(t, Config{MaxConnsPerClient: clients}, stub{hit: func(buf, query []byte, from wire.Origin) ([]byte, bool) {
		if from.Transport == wire.TCP {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			for range 3 { // whoever else is ready gets its chance
				runtime.Gosched()
			}
			now.Add(-1)
			hits.Add(1)
		}
		return echo(buf, query), true
	}})
	var queries [][]byte
	for i := range uint16(100) {
		queries = append(queries, question(i, "a"))
	}
	var wg sync.WaitGroup
	var conns []net.Conn
	for i := range clients {
		c := dial(t, "tcp", r.Addr())
		conns = append(conns, c)
		wg.Go(func() {
			for block := frame(queries...); ; {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		})
		if i%2 == 0 {
			wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
	}
	eventually(t, "the flood", func() bool { return hits.Load() > 20*clients })
	began := time.Now()
	for i := range uint16(20) {
		ask(t, dial(t, "udp", r.Addr()), question(i, "b"))
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("20 questions over UDP took %v", took)
	}
	for _, c := range conns {
		c.Close()
	}
	wg.Wait()
	if got, limit := most.Load(), max(1, int32(runtime.GOMAXPROCS(0))/2); got > limit {
		t.Errorf("%d connections were served at a time, at most %d expected", got, limit)
	}
}

// TestTurnsLetOthersRun: whoever waits for a packet gets it soon, although one goroutine
// after the other takes a turn and none ever waits for anything else. Without that it
// takes the runtime 10 ms to look for packets.
func TestTurnsLetOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ts, err := newTurns(1)
	if err != nil {
		t.Fatal(err)
	}
	defer ts.close()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, "udp", server.LocalAddr().(*net.UDPAddr).AddrPort())
	var seen atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 10); ; seen.Add(1) {
			if _, _, err := server.ReadFrom(buf); err != nil {
				return
			}
		}
	}()
	var took []time.Duration
	for i := range int32(15) {
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		sent := time.Now()
		for seen.Load() == i {
			turn := ts.take()
			for begin := time.Now(); time.Since(begin) < 20*time.Microsecond; {
			}
			ts.give(turn)
		}
		took = append(took, time.Since(sent))
	}
	server.Close()
	<-done
	slices.Sort(took)
	if median := took[len(took)/2]; median > 4*time.Millisecond {
		t.Errorf("a packet was read after %v, half of the time", median)
	}
}
