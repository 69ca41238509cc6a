package main

import (
	"context"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/nodedns/nodedns/cache/internal/corefile"
)

// consolidator is a log handler that counts records with certain errors and writes one line for a period of them, as the
// option consolidate of the errors directive asks.
type consolidator struct {
	next  slog.Handler // of single records
	sums  slog.Handler // of those for a period
	rules []*consolidation
}

type consolidation struct {
	rule    corefile.Consolidate
	pattern *regexp.Regexp
	level   slog.Level

	mu    sync.Mutex
	count int
}

func newConsolidator(next, sums slog.Handler, rules []corefile.Consolidate) *consolidator {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError}
	c := &consolidator{next: next, sums: sums}
	for _, r := range rules {
		if re, err := regexp.Compile(r.Pattern); err == nil { // always, the Corefile was checked
			c.rules = append(c.rules, &consolidation{rule: r, pattern: re, level: levels[r.Level]})
		}
	}
	return c
}

// Enabled implements slog.Handler.
func (c *consolidator) Enabled(ctx context.Context, l slog.Level) bool { return c.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (c *consolidator) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &consolidator{next: c.next.WithAttrs(attrs), sums: c.sums.WithAttrs(attrs), rules: c.rules}
}

// WithGroup implements slog.Handler.
func (c *consolidator) WithGroup(name string) slog.Handler {
	return &consolidator{next: c.next.WithGroup(name), sums: c.sums.WithGroup(name), rules: c.rules}
}

// Handle implements slog.Handler.
func (c *consolidator) Handle(ctx context.Context, rec slog.Record) error {
	text := rec.Message
	rec.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			text = a.Value.String()
			return false
		}
		return true
	})
	for _, r := range c.rules {
		if !r.pattern.MatchString(text) {
			continue
		}
		first := r.add(c.sums)
		if first && r.rule.ShowFirst {
			return c.next.Handle(ctx, rec)
		}
		return nil
	}
	return c.next.Handle(ctx, rec)
}

// add counts a record and, if it is the first of a period, sets the timer that ends it.
func (r *consolidation) add(to slog.Handler) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if r.count > 1 {
		return false
	}
	time.AfterFunc(r.rule.Period, func() { r.flush(to) })
	return true
}

func (r *consolidation) flush(to slog.Handler) {
	r.mu.Lock()
	n := r.count
	r.count = 0
	r.mu.Unlock()
	if n == 0 || n == 1 && r.rule.ShowFirst || !to.Enabled(context.Background(), r.level) {
		return
	}
	rec := slog.NewRecord(time.Now(), r.level, "queries failed alike", 0)
	rec.AddAttrs(slog.Int("count", n), slog.String("pattern", r.rule.Pattern), slog.Duration("period", r.rule.Period))
	_ = to.Handle(context.Background(), rec) // there is no other place to say that the log cannot be written
}
