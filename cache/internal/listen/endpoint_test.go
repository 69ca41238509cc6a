package listen

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	err := Config{Sockets: -1, Drain: -time.Second}.Validate()
	for _, want := range []string{"address missing", "sockets is negative", "drain is negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	err = Config{Addr: netip.MustParseAddrPort("[fe80::1]:53")}.Validate()
	if err == nil || !strings.Contains(err.Error(), "zone") {
		t.Errorf("link-local address without a zone: %v", err)
	}
	if err := (Config{Addr: netip.MustParseAddrPort("127.0.0.1:53")}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestMetricNames(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	NewMetrics(reg)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// All or nothing, and the error says where and over what.
func TestBindConflict(t *testing.T) {
	for _, taken := range []string{"udp", "tcp"} {
		t.Run(taken, func(t *testing.T) {
			// A port that is free over both.
			ep, err := Listen(Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, stub{}, slog.New(slog.DiscardHandler), NewMetrics(nil))
			if err != nil {
				t.Fatal(err)
			}
			ep.Close()
			addr := ep.Addr().String()
			if taken == "udp" {
				c, err := net.ListenPacket("udp4", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			} else {
				l, err := net.Listen("tcp4", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			_, err = Listen(Config{Addr: ep.Addr()}, stub{}, slog.New(slog.DiscardHandler), NewMetrics(nil))
			if !errors.Is(err, syscall.EADDRINUSE) {
				t.Fatalf("error %v", err)
			}
			if want := "listening on " + addr + " over " + taken; !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not say %q", err, want)
			}
			// The other transport is not left bound.
			if taken == "udp" {
				l, err := net.Listen("tcp4", addr)
				if err != nil {
					t.Fatal(err)
				}
				l.Close()
			} else {
				c, err := net.ListenPacket("udp4", addr)
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			}
		})
	}
}

func TestBindForeignAddress(t *testing.T) {
	t.Parallel()
	_, err := Listen(Config{Addr: netip.MustParseAddrPort("192.0.2.1:5353")}, stub{}, slog.New(slog.DiscardHandler), NewMetrics(nil))
	if !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "192.0.2.1:5353 over udp") {
		t.Errorf("error %v", err)
	}
}

func TestCloseWithoutRun(t *testing.T) {
	t.Parallel()
	ep, err := Listen(Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, stub{}, slog.New(slog.DiscardHandler), NewMetrics(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := ep.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := net.ListenPacket("udp4", ep.Addr().String())
	if err != nil {
		t.Fatalf("still bound: %v", err)
	}
	c.Close()
	if err := ep.Run(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Run after Close: %v", err)
	}
}

func TestSwap(t *testing.T) {
	t.Parallel()
	r := start(t, Config{}, stub{})
	c := dial(t, "udp", r.Addr())
	if got := ask(t, c, question(1, "a")); rcode(got) != 0 {
		t.Fatalf("reply %x", got)
	}
	r.Swap(stub{hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
		return wire.AppendError(buf, query, wire.Refused), true
	}})
	if got := ask(t, c, question(2, "a")); rcode(got) != int(wire.Refused) {
		t.Errorf("the old handler is still at work: %x", got)
	}
}

// An idle endpoint makes progress, one whose worker hangs in the handler does not.
func TestProgress(t *testing.T) {
	t.Parallel()
	hang, hung := make(chan struct{}), make(chan struct{})
	r := start(t, Config{Sockets: 2}, stub{hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
		close(hung)
		<-hang
		return echo(buf, query), true
	}})
	began := time.Now()
	eventually(t, "progress while idle", func() bool { return r.Progress().After(began) })
	c := dial(t, "udp", r.Addr())
	if _, err := c.Write(question(1, "a")); err != nil {
		t.Fatal(err)
	}
	<-hung
	stuck := time.Now()
	timer := time.NewTimer(3 * heartbeat)
	defer timer.Stop()
	<-timer.C
	if p := r.Progress(); p.After(stuck) {
		t.Errorf("progress at %v although a worker has hung since %v", p, stuck)
	}
	close(hang)
	eventually(t, "progress after the hang", func() bool { return r.Progress().After(stuck) })
}

// What was asked before the end is answered, over both transports, hit or miss.
func TestDrainAnswersWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 2)
	release := make(chan struct{})
	r := start(t, Config{Drain: 5 * time.Second}, stub{
		hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
			if query[13] == 'h' {
				return echo(buf, query), true
			}
			return nil, false
		},
		resolve: func(ctx context.Context, buf, query []byte, _ wire.Origin) []byte {
			entered <- struct{}{}
			<-release
			if ctx.Err() != nil {
				t.Error("the context of a question under way has ended")
			}
			return echo(buf, query)
		},
	})
	udp, tcp := dial(t, "udp", r.Addr()), dial(t, "tcp", r.Addr())
	if _, err := udp.Write(question(1, "miss")); err != nil {
		t.Fatal(err)
	}
	if _, err := tcp.Write(frame(question(2, "miss"))); err != nil {
		t.Fatal(err)
	}
	<-entered
	<-entered
	r.stop()
	// Still serving: clients that have not heard yet.
	if got := ask(t, dial(t, "udp", r.Addr()), question(3, "hit")); id(got) != 3 {
		t.Fatalf("reply %x", got)
	}
	late := dial(t, "tcp", r.Addr())
	if _, err := late.Write(frame(question(4, "hit"))); err != nil {
		t.Fatal(err)
	}
	if got := readFrame(t, late); id(got) != 4 {
		t.Fatalf("reply %x", got)
	}
	close(release)
	buf := make([]byte, 512)
	if n, err := udp.Read(buf); err != nil || id(buf[:n]) != 1 {
		t.Errorf("udp: %x, %v", buf[:n], err)
	}
	if got := readFrame(t, tcp); id(got) != 2 {
		t.Errorf("tcp: %x", got)
	}
	r.end(t)
	if _, err := net.DialTimeout("tcp", r.Addr().String(), time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the drain: %v", err)
	}
}

// A handler that ignores time is cut off: its context ends with the drain.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	r := start(t, Config{Drain: 300 * time.Millisecond}, stub{
		resolve: func(ctx context.Context, buf, query []byte, _ wire.Origin) []byte {
			close(entered)
			<-ctx.Done()
			return echo(buf, query)
		},
	})
	c := dial(t, "udp", r.Addr())
	if _, err := c.Write(question(1, "a")); err != nil {
		t.Fatal(err)
	}
	<-entered
	began := time.Now()
	r.end(t)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("draining took %v", took)
	}
}

// A flood that fills each batch does not keep the endpoint from draining: every question
// that is answered puts another one into the socket.
func TestDrainUnderFlood(t *testing.T) {
	t.Parallel()
	var client atomic.Pointer[net.Conn] // nil: no flood
	r := start(t, Config{Sockets: 1, Drain: 300 * time.Millisecond}, stub{hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
		if c := client.Load(); c != nil {
			_, _ = (*c).Write(query)
		}
		return echo(buf, query), true
	}})
	c := dial(t, "udp", r.Addr())
	client.Store(&c)
	for i := range uint16(4 * batchSize) {
		if _, err := c.Write(question(i, "a")); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()
	select {
	case err := <-r.done:
		r.done <- err
	case <-time.After(5 * time.Second):
		t.Error("Run has not returned")
		client.Store(nil)
	}
}

// A new endpoint takes over from one that drains, on the same address, under load, and
// no question is lost over UDP.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	const rounds = 5
	old := start(t, Config{Sockets: 2, Drain: 400 * time.Millisecond}, stub{})
	addr := old.Addr()
	stop := make(chan struct{})
	asked := make(chan int)
	for range 4 {
		go func() {
			n := 0
			defer func() { asked <- n }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.Dial("udp", addr.String()) // a new port: any of the sockets
				if err != nil {
					t.Error(err)
					return
				}
				buf := make([]byte, 512)
				c.SetDeadline(time.Now().Add(5 * time.Second))
				if _, err = c.Write(question(uint16(n), "a")); err == nil {
					_, err = c.Read(buf)
				}
				c.Close()
				if err != nil {
					t.Errorf("question %d: %v", n, err)
					return
				}
				n++
			}
		}()
	}
	for range rounds {
		next := start(t, Config{Addr: addr, Sockets: 2, Drain: 400 * time.Millisecond}, stub{})
		old.end(t)
		old = next
	}
	close(stop)
	total := 0
	for range 4 {
		total += <-asked
	}
	if total < 100 {
		t.Errorf("only %d questions in %d rounds", total, rounds)
	}
}

// When one socket fails, Run says so instead of serving on with the others.
func TestRunFails(t *testing.T) {
	t.Parallel()
	ep, err := Listen(Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Sockets: 2}, stub{}, slog.New(slog.DiscardHandler), NewMetrics(nil))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- ep.Run(t.Context()) }()
	eventually(t, "the first turn", func() bool { return ep.Progress().After(ep.born) })
	ep.udp[1].conn.Close()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "over udp") {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run goes on")
	}
}

func TestPoolShrinks(t *testing.T) {
	t.Parallel()
	const n = 50
	entered := make(chan struct{}, n)
	release := make(chan struct{})
	r := start(t, Config{Sockets: 1}, stub{resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
		entered <- struct{}{}
		<-release
		return echo(buf, query)
	}})
	c := dial(t, "udp", r.Addr())
	for i := range uint16(n) {
		if _, err := c.Write(question(i, "a")); err != nil {
			t.Fatal(err)
		}
		<-entered
	}
	size := func() int {
		r.pool.mu.Lock()
		defer r.pool.mu.Unlock()
		return r.pool.size
	}
	if got := size(); got != n {
		t.Fatalf("%d tasks for %d questions", got, n)
	}
	close(release)
	eventually(t, "idle tasks to end", func() bool { return size() == 0 })
}
