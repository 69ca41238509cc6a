package listen

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestIdleConnectionEnds(t *testing.T) {
	t.Parallel()
	r := start(t, Config{IdleTimeout: 100 * time.Millisecond}, stub{})
	fresh, used := dial(t, "tcp", r.Addr()), dial(t, "tcp", r.Addr())
	if _, err := used.Write(frame(question(1, "a"))); err != nil {
		t.Fatal(err)
	}
	readFrame(t, used)
	wantEnd(t, fresh)
	wantEnd(t, used)
	if n := r.value(t, "nodedns_tcp_connections_closed_total", "reason", "idle"); n != 2 {
		t.Errorf("closed for idleness: %v, want 2", n)
	}
	eventually(t, "no open connection", func() bool { return r.value(t, "nodedns_tcp_connections") == 0 })
}

// Waiting for an answer is not idleness.
func TestSlowAnswerIsNotIdle(t *testing.T) {
	t.Parallel()
	r := start(t, Config{IdleTimeout: 300 * time.Millisecond}, stub{resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
		timer := time.NewTimer(time.Second)
		defer timer.Stop()
		<-timer.C
		return echo(buf, query)
	}})
	c := dial(t, "tcp", r.Addr())
	if _, err := c.Write(frame(question(1, "a"))); err != nil {
		t.Fatal(err)
	}
	if got := readFrame(t, c); id(got) != 1 {
		t.Errorf("reply %x", got)
	}
	wantEnd(t, c)
}

// A message has to be whole in time; octets that drip in do not extend it.
func TestSlowReadEnds(t *testing.T) {
	t.Parallel()
	r := start(t, Config{ReadTimeout: 200 * time.Millisecond, IdleTimeout: time.Hour}, stub{})
	c := dial(t, "tcp", r.Addr())
	began := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(io.Discard, c)
	}()
	msg := frame(append(question(1, "a"), make([]byte, 1000)...))
loop:
	for i := 0; ; i++ {
		select {
		case <-ended:
			break loop
		case <-tick.C:
			if _, err := c.Write(msg[i : i+1]); err != nil {
				c.Close()
				<-ended
				break loop
			}
		}
	}
	if took := time.Since(began); took < 150*time.Millisecond || took > 5*time.Second {
		t.Errorf("ended after %v", took)
	}
	if n := r.value(t, "nodedns_tcp_connections_closed_total", "reason", "slow_read"); n != 1 {
		t.Errorf("closed for slow reading: %v, want 1", n)
	}
}

// A client that does not take its replies is cut off; no task waits for it.
func TestSlowWriteEnds(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"hit", "miss"} {
		t.Run(path, func(t *testing.T) {
			answer := func(buf, query []byte) []byte {
				return append(echo(buf, query), make([]byte, 60000)...)
			}
			r := start(t, Config{WriteTimeout: 200 * time.Millisecond, MaxInflight: 64, MaxPipeline: 32}, stub{
				hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
					if path == "miss" {
						return nil, false
					}
					return answer(buf, query), true
				},
				resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte { return answer(buf, query) },
			})
			c := dial(t, "tcp", r.Addr())
			go func() {
				for i := range 1000 { // 60 MB of replies, which nobody reads
					if _, err := c.Write(frame(question(uint16(i), "a"))); err != nil {
						return
					}
				}
			}()
			eventually(t, "the slow client to be cut off", func() bool {
				return r.value(t, "nodedns_tcp_connections_closed_total", "reason", "slow_write") == 1
			})
			eventually(t, "its replies to be dropped", func() bool { return r.queued.Load() == 0 })
			// Others are served.
			other := dial(t, "tcp", r.Addr())
			if _, err := other.Write(frame(question(1, "a"))); err != nil {
				t.Fatal(err)
			}
			if got := readFrame(t, other); id(got) != 1 {
				t.Errorf("reply %x", got[:12])
			}
		})
	}
}

// What is queued for clients is bounded, whatever they ask and do not read: by few
// connections with much under way, or by many with little.
func TestQueuedRepliesAreBounded(t *testing.T) {
	for _, tc := range []struct {
		name  string
		conns int
		size  int
		hit   bool
	}{{"few", 16, 30000, false}, {"many", 250, 10000, true}} {
		t.Run(tc.name, func(t *testing.T) {
			answer := func(buf, query []byte) []byte {
				return append(echo(buf, query), make([]byte, tc.size)...)
			}
			underWay, release := make(chan struct{}, 1<<16), make(chan struct{})
			r := start(t, Config{WriteTimeout: time.Hour}, stub{
				hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
					return answer(buf, query), tc.hit
				},
				resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
					underWay <- struct{}{}
					<-release
					return answer(buf, query)
				},
			})
			var conns []net.Conn
			var askers sync.WaitGroup
			for range tc.conns {
				c := dial(t, "tcp", r.Addr())
				if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
					t.Fatal(err)
				}
				conns = append(conns, c)
			}
			eventually(t, "all to be open", func() bool { return r.value(t, "nodedns_tcp_connections") == float64(tc.conns) })
			r.conns.mu.Lock()
			for c := range r.conns.conns {
				if err := c.tcp.SetWriteBuffer(4096); err != nil { // the kernel shall take little
					t.Error(err)
				}
			}
			r.conns.mu.Unlock()
			for _, c := range conns {
				askers.Go(func() {
					queries := bytes.Repeat(frame(question(1, "a")), 200)
					for {
						if _, err := c.Write(queries); err != nil {
							return
						}
					}
				})
			}
			if !tc.hit {
				for range tc.conns * r.cfg.MaxPipeline {
					<-underWay
				}
			}
			close(release)
			// A goroutine counts its reply before it sees that there is no room.
			slack := int64(r.cfg.MaxConns*fairShare + tc.conns*tc.size)
			eventually(t, "the bound to bite", func() bool {
				if n := r.queued.Load(); n > maxQueued+slack {
					t.Fatalf("%d octets queued", n)
				}
				return r.value(t, "nodedns_tcp_connections_closed_total", "reason", "slow_write") > float64(tc.conns)/4
			})
			for _, c := range conns {
				c.Close()
			}
			askers.Wait()
			eventually(t, "the queues to empty", func() bool { return r.queued.Load() == 0 })
		})
	}
}

// A connection does not keep the room that its largest burst took.
func TestIdleConnectionHoldsLittle(t *testing.T) {
	t.Parallel()
	r := start(t, Config{}, stub{hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
		return append(echo(buf, query), make([]byte, 60000)...), true
	}})
	c := dial(t, "tcp", r.Addr())
	const n = 20
	for range n {
		if _, err := c.Write(frame(question(1, "a"), question(2, "b"))); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 * n {
		readFrame(t, c)
	}
	r.conns.mu.Lock()
	defer r.conns.mu.Unlock()
	for c := range r.conns.conns {
		eventually(t, "the connection to be idle", func() bool { _, idle := c.idleSince(); return idle })
		c.mu.Lock()
		defer c.mu.Unlock()
		if held := cap(c.out) + cap(c.spare); held > 2*fairShare {
			t.Errorf("an idle connection holds %d octets", held)
		}
	}
}

// No more than MaxPipeline questions of one connection are under way, and none is lost.
func TestPipelineBound(t *testing.T) {
	t.Parallel()
	const bound, n = 4, 50
	entered, release := make(chan struct{}, n), make(chan struct{})
	r := start(t, Config{MaxPipeline: bound}, stub{resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
		entered <- struct{}{}
		<-release
		return echo(buf, query)
	}})
	c := dial(t, "tcp", r.Addr())
	var all []byte
	for i := range uint16(n) {
		all = append(all, frame(question(i, "a"))...)
	}
	if _, err := c.Write(all); err != nil {
		t.Fatal(err)
	}
	for range bound {
		<-entered
	}
	// The others wait their turn: another connection is served meanwhile.
	other := dial(t, "tcp", r.Addr())
	if _, err := other.Write(frame(question(99, "a"))); err != nil {
		t.Fatal(err)
	}
	<-entered
	if len(entered) != 0 {
		t.Errorf("more than %d questions of one connection under way", bound)
	}
	close(release)
	got := map[uint16]bool{}
	for range n {
		got[id(readFrame(t, c))] = true
	}
	if len(got) != n {
		t.Errorf("%d different replies, want %d", len(got), n)
	}
	readFrame(t, other)
}

func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, label string
		cfg         Config
	}{
		{"client", "client", Config{MaxConnsPerClient: 2, MaxConns: 100}},
		{"total", "total", Config{MaxConns: 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			release := make(chan struct{})
			tc.cfg.Addr = netip.MustParseAddrPort("127.0.0.1:0")
			r := start(t, tc.cfg, stub{
				hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
					return echo(buf, query), query[13] == 'h'
				},
				resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
					<-release
					return echo(buf, query)
				},
			})
			busy := func(c net.Conn) {
				t.Helper()
				if _, err := c.Write(frame(question(1, "miss"), question(2, "hit"))); err != nil {
					t.Fatal(err)
				}
				readFrame(t, c) // the hit: the miss before it is under way
			}
			a, b := dial(t, "tcp", r.Addr()), dial(t, "tcp", r.Addr())
			busy(a)
			eventually(t, "both to be open", func() bool { return r.value(t, "nodedns_tcp_connections") == 2 })
			// b is idle and makes room for c.
			c := dial(t, "tcp", r.Addr())
			busy(c)
			wantEnd(t, b)
			// Now none is idle: d is turned away, at once.
			d := dial(t, "tcp", r.Addr())
			wantEnd(t, d)
			if n := r.value(t, "nodedns_tcp_connections_rejected_total", "limit", tc.label); n != 1 {
				t.Errorf("rejected %v, want 1", n)
			}
			if n := r.value(t, "nodedns_tcp_connections_closed_total", "reason", "evicted"); n != 1 {
				t.Errorf("evicted %v, want 1", n)
			}
			if tc.name == "client" {
				// Another client has its own share.
				dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
				e, err := dialer.Dial("tcp", r.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				e.SetDeadline(time.Now().Add(5 * time.Second))
				if _, err := e.Write(frame(question(5, "hit"))); err != nil {
					t.Fatal(err)
				}
				if got := readFrame(t, e); id(got) != 5 {
					t.Errorf("reply %x", got)
				}
			}
			close(release)
			for _, conn := range []net.Conn{a, c} {
				if got := readFrame(t, conn); id(got) != 1 {
					t.Errorf("the question under way: %x", got)
				}
			}
		})
	}
}
