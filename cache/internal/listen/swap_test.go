package listen

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// An idle endpoint lets go of the former handler at once, not with its next heartbeat.
func TestSwapOfAnIdleEndpoint(t *testing.T) {
	t.Parallel()
	r := start(t, Config{Sockets: 4}, stub{})
	if got := ask(t, dial(t, "udp", r.Addr()), question(1, "a")); id(got) != 1 {
		t.Fatalf("reply %x", got)
	}
	idle := dial(t, "tcp", r.Addr())
	if _, err := idle.Write(frame(question(2, "a"))); err != nil {
		t.Fatal(err)
	}
	readFrame(t, idle)
	began := time.Now()
	for range 10 {
		<-r.Swap(stub{})
	}
	if took := time.Since(began); took > heartbeat {
		t.Errorf("ten swaps took %v", took)
	}
}

// The former handler is not given up while it resolves a question.
func TestSwapWaitsForQuestionsUnderWay(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			entered, release := make(chan struct{}), make(chan struct{})
			r := start(t, Config{}, stub{resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
				close(entered)
				<-release
				return echo(buf, query)
			}})
			c := dial(t, network, r.Addr())
			query := question(1, "a")
			if network == "tcp" {
				query = frame(query)
			}
			if _, err := c.Write(query); err != nil {
				t.Fatal(err)
			}
			<-entered
			drained := r.Swap(stub{})
			<-r.Swap(stub{}) // by now nothing but the question holds the first one
			if isClosed(drained) {
				t.Error("given up while it resolves")
			}
			close(release)
			<-drained
		})
	}
}

func TestSwapWithoutRun(t *testing.T) {
	t.Parallel()
	r := start(t, Config{}, stub{})
	<-r.Swap(stub{})
	r.end(t)
	<-r.Swap(stub{})
}

// mortal is a handler that must not be called once it is dead.
type mortal struct {
	dead   atomic.Bool
	t      *testing.T
	answer *atomic.Int64
}

func (m *mortal) Hit(buf, query []byte, _ wire.Origin) ([]byte, bool) {
	m.check("Hit")
	return echo(buf, query), query[13] == 'h'
}

func (m *mortal) Resolve(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
	m.check("Resolve")
	return echo(buf, query)
}

func (m *mortal) check(call string) {
	if m.dead.Load() {
		m.t.Errorf("%s of a handler that was given up", call)
	}
	m.answer.Add(1)
}

// Under load no call reaches a handler after its channel was closed.
func TestSwapUnderLoad(t *testing.T) {
	t.Parallel()
	var answers atomic.Int64
	handler := &mortal{t: t, answer: &answers}
	r := start(t, Config{Sockets: 2}, handler)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() { ply(t, r.Addr(), []string{"udp", "tcp"}[i%2], stop) })
	}
	eventually(t, "answers", func() bool { return answers.Load() > 100 })
	for range 200 {
		next := &mortal{t: t, answer: &answers}
		<-r.Swap(next)
		handler.dead.Store(true)
		handler = next
	}
	close(stop)
	clients.Wait()
}

// ply asks for hits and misses in turn until stop.
func ply(t *testing.T, addr netip.AddrPort, network string, stop <-chan struct{}) {
	c := dial(t, network, addr)
	for i := uint16(0); !isClosed(stop); i++ {
		query := question(i, []string{"hit", "miss"}[i%2])
		if network == "udp" {
			ask(t, c, query)
			continue
		}
		if _, err := c.Write(frame(query)); err != nil {
			t.Error(err)
			return
		}
		readFrame(t, c)
	}
}
