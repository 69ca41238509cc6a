package forward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// Run lets the exchanges under way end, and nothing is left afterwards.
func TestRunDrains(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		release := make(chan struct{})
		up := newFake(t, func(q *asked) {
			<-release
			q.send(q.reply(1))
		})
		f, err := New(Config{Targets: targets(up), ForceTCP: force}, slog.New(slog.DiscardHandler), NewMetrics(nil))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- f.Run(ctx) }()
		got := make(chan error, 1)
		go func() {
			_, err := f.Exchange(context.Background(), packed(t, "a.test"))
			got <- err
		}()
		eventually(t, "the query", func() bool { return up.count("") > 0 })
		cancel()
		select {
		case err := <-ran:
			t.Fatalf("Run has not waited: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(release)
		if err := <-got; err != nil {
			t.Errorf("the exchange under way: %v", err)
		}
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if _, err := f.Exchange(t.Context(), packed(t, "b.test")); force && err == nil {
			t.Error("a closed Forward opens connections")
		}
	}
}

// An upstream that is not configured any more answers what is under way, and then goes.
func TestRetire(t *testing.T) {
	t.Parallel()
	up := newFake(t, answer, noUDP)
	f := start(t, Config{Targets: targets(up), ForceTCP: true})
	f.mustAsk(t, "a.test", 1, time.Second)
	u := (*f.ups.Load())[0]
	f.replace(nil)
	q, _ := readQuery(packed(t, "late.test"))
	if _, err := u.exchange(t.Context(), q, time.Now().Add(2*time.Second), time.Time{}); err != nil {
		t.Errorf("under way: %v", err)
	}
	began := time.Now()
	eventually(t, "its connections to end", func() bool {
		u.streams.mu.Lock()
		defer u.streams.mu.Unlock()
		return len(u.streams.streams) == 0
	})
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("they end after %v", took)
	}
}

// U04: beyond max_concurrent queries are turned away at once and counted.
func TestU04_MaxConcurrent(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	up := newFake(t, func(q *asked) {
		<-release
		q.send(q.reply(1))
	})
	f := start(t, Config{Targets: targets(up), MaxConcurrent: 2})
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 4*time.Second) })
	}
	eventually(t, "both queries", func() bool { return up.count("") == 2 })
	for range 8 {
		began := time.Now()
		if _, err := f.ask(t, "more.test"); !errors.Is(err, wire.ErrBusy) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("turned away after %v", took)
		}
	}
	if n := f.value(t, "coredns_forward_max_concurrent_rejects_total"); n != 8 {
		t.Errorf("coredns_forward_max_concurrent_rejects_total %v, want 8", n)
	}
	close(release)
	wg.Wait()
	f.mustAsk(t, "more.test", 1, time.Second)
}
