// Package console tells a person at a terminal what a long-running program of the test bed is doing.
//
// It owns the form of the lines (time since the start, then the text) and the "still at it" lines of long steps. It
// owns no logging: what programs log goes to their own files.
//
//	con := console.New(os.Stdout)
//	con.Step("starting the control plane")
//	done := con.Long("building etcd", time.Minute)
//	err := build()
//	done(err)
package console

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// tick is how often a long step says that it is still at it. CI systems take silence of some minutes for a hang.
const tick = 15 * time.Second

// A Console writes lines for a person. Its methods may be called by several goroutines. A nil Console writes nothing.
type Console struct {
	mu    sync.Mutex
	w     io.Writer
	start time.Time
	last  time.Time
}

// New returns a Console that writes to w and counts time from now.
func New(w io.Writer) *Console {
	now := time.Now()
	return &Console{w: w, start: now, last: now}
}

// Step writes one line with the time since the start before it.
func (c *Console) Step(format string, args ...any) {
	if c == nil {
		return
	}
	c.line(fmt.Sprintf("%6.1fs  %s", time.Since(c.start).Seconds(), fmt.Sprintf(format, args...)))
}

// Plain writes text as it is, with a line break.
func (c *Console) Plain(format string, args ...any) {
	if c == nil {
		return
	}
	c.line(fmt.Sprintf(format, args...))
}

// Elapsed returns the time since the start; zero for a nil Console.
func (c *Console) Elapsed() time.Duration {
	if c == nil {
		return 0
	}
	return time.Since(c.start)
}

// Quiet returns for how long nothing was written.
func (c *Console) Quiet() time.Duration {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.last)
}

// Long announces a step that may take minutes and returns the function that ends it. Until then a line every 15 s says
// how long it has been running. expect is how long the step usually takes; 0 means that nobody knows.
func (c *Console) Long(what string, expect time.Duration) (done func(error)) {
	if c == nil {
		return func(error) {}
	}
	hint := ""
	if expect > 0 {
		hint = fmt.Sprintf(" (about %s)", Short(expect))
	}
	c.Step("%s%s", what, hint)
	begin, stop, stopped := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		t := time.NewTicker(tick)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				c.Step("  … %s: %s so far%s", what, Short(time.Since(begin)), hint)
			}
		}
	}()
	return func(err error) {
		close(stop)
		<-stopped
		if err != nil {
			c.Step("%s failed after %s", what, Short(time.Since(begin)))
			return
		}
		c.Step("%s: done in %s", what, Short(time.Since(begin)))
	}
}

func (c *Console) line(s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = time.Now()
	fmt.Fprintln(c.w, s)
}

// Short formats a duration for a person: 4.2s, 47s, 3m05s.
func Short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	default:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
}
