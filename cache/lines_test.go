package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodedns/nodedns/cache/internal/corefile"
)

// TestErrorLogIsLimited: ten records a second pass, and the next one tells of the rest.
func TestErrorLogIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := testBuilder()
		b.log = slog.New(slog.NewTextHandler(&out, nil))
		log := b.errors(&corefile.Errors{})
		for range 25 {
			log.Warn("query failed", "error", errors.New("refused"))
		}
		if n := strings.Count(out.String(), "query failed"); n != logsPerSecond {
			t.Errorf("%d records", n)
		}
		time.Sleep(time.Second)
		log.With("zone", "a").Warn("query failed", "error", errors.New("refused"))
		if s := out.String(); strings.Count(s, "unlogged=15") != 1 {
			t.Errorf("what was left out is not counted: %s", s)
		}
	})
}

// TestConsolidateCountsAll: what is consolidated is not limited before it is counted.
func TestConsolidateCountsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var out bytes.Buffer
		b := testBuilder()
		b.log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &out}, nil))
		log := b.errors(&corefile.Errors{Consolidate: []corefile.Consolidate{{Period: time.Minute, Pattern: "timeout$", Level: "error"}}})
		for range 500 {
			log.Warn("query failed", "error", errors.New("i/o timeout"))
		}
		for range 25 { // which use up the limit at the moment of the summary
			time.AfterFunc(time.Minute, func() { log.Warn("query failed", "error", errors.New("refused")) })
		}
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if s := out.String(); !strings.Contains(s, "count=500") || strings.Count(s, "refused") != logsPerSecond {
			t.Error(s)
		}
	})
}

// stuck is an output that takes nothing until it is let go.
type stuck struct {
	let chan struct{}
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.let
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func TestLineQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &stuck{let: make(chan struct{})}
		var dropped atomic.Int64
		q := newLineQueue(out, func() { dropped.Add(1) })
		var want bytes.Buffer
		line := func(i int) string { return fmt.Sprintf("line %d\n", i) }
		for i := range maxLines { // and those that the goroutine has taken already
			if i == 1 {
				synctest.Wait()
			}
			_, _ = io.WriteString(q, line(i))
			want.WriteString(line(i))
		}
		_, _ = io.WriteString(q, line(maxLines))
		want.WriteString(line(maxLines))
		for range 10 {
			_, _ = io.WriteString(q, "too much\n")
		}
		if n := dropped.Load(); n != 10 {
			t.Errorf("%d lines dropped", n)
		}
		start := time.Now()
		q.close(time.Second)
		if took := time.Since(start); took != time.Second {
			t.Errorf("a stuck output holds the end for %v", took)
		}
		close(out.let)
		<-q.done
		if out.buf.String() != want.String() {
			t.Error("the lines that were taken are not what was written")
		}
	})
}

// TestStuckOutputHoldsNothingUp: nobody reads what the process says, with each question logged, and failures besides: all
// questions are answered, and the process ends in time.
func TestStuckOutputHoldsNothingUp(t *testing.T) {
	up := newUpstream(t, "192.0.2.7")
	dir, port := t.TempDir(), freePort(t)
	file := filepath.Join(dir, "Corefile")
	write(t, file, strings.ReplaceAll(block(".", up.addr, "log", "cache 30")+block("bad.test", "127.0.0.1:9", "log", "debug"), "PORT", port))
	out := &stuck{let: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"-setupinterface=false", "-setupiptables=false", "-localip", "127.0.0.1", "-metrics-listen-address", "", "-conf", file},
			environment{lookup: vars(), stdout: out, stderr: out})
	}()
	for ask(ctx, "127.0.0.1:"+port, "tcp", "first.test") != "192.0.2.7" {
		time.Sleep(5 * time.Millisecond)
	}
	start := time.Now()
	for i := range 300 {
		if got := ask(ctx, "127.0.0.1:"+port, "udp", fmt.Sprintf("n%d.test", i/2)); got != "192.0.2.7" {
			t.Fatalf("question %d: %s", i, got)
		}
		if i%10 == 0 {
			if got := ask(ctx, "127.0.0.1:"+port, "udp", fmt.Sprintf("n%d.bad.test", i)); got != "SERVFAIL" {
				t.Fatalf("question %d: %s", i, got)
			}
		}
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(15 * time.Second):
		t.Error("the process does not end")
	}
	close(out.let)
}
