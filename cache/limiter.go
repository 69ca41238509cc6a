package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logsPerSecond is how many failed questions of one block are logged in a second: an upstream that is away must not fill the
// disk of the node.
const logsPerSecond = 10

// limiter is a log handler that lets only so many records through, and adds to the next one how many it left out.
type limiter struct {
	next  slog.Handler
	count *limit
}

// limit is what a limiter and those derived from it have counted.
type limit struct {
	mu     sync.Mutex
	since  time.Time
	n      int
	missed int
}

func newLimiter(next slog.Handler) *limiter { return &limiter{next: next, count: &limit{}} }

// Enabled implements slog.Handler.
func (l *limiter) Enabled(ctx context.Context, level slog.Level) bool {
	return l.next.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (l *limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limiter{next: l.next.WithAttrs(attrs), count: l.count}
}

// WithGroup implements slog.Handler.
func (l *limiter) WithGroup(name string) slog.Handler {
	return &limiter{next: l.next.WithGroup(name), count: l.count}
}

// Handle implements slog.Handler.
func (l *limiter) Handle(ctx context.Context, rec slog.Record) error {
	ok, missed := l.count.take(time.Now())
	if !ok {
		return nil
	}
	if missed > 0 {
		rec = rec.Clone()
		rec.AddAttrs(slog.Int("unlogged", missed))
	}
	return l.next.Handle(ctx, rec)
}

// take tells whether a record may pass, and how many before it did not.
func (l *limit) take(now time.Time) (ok bool, missed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= time.Second {
		l.since, l.n = now, 0
	}
	if l.n >= logsPerSecond {
		l.missed++
		return false, 0
	}
	l.n++
	missed, l.missed = l.missed, 0
	return true, missed
}
