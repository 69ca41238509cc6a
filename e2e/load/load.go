// Package load asks a DNS server open-loop: questions leave at a fixed rate whether or not earlier ones were answered,
// each from a socket of its own, as programs on a node do that resolve a name each. A client that waits for an answer
// before it asks again would hide an outage, since it asks nothing during it.
//
// It records for each question whether it was answered in time and by whom. Who answered is told by the name server
// identifier (RFC 5001): each question asks for it, the cluster DNS server (its plugin nsid) gives its own, and the
// cache, which strips options that are meant for one hop only, gives none.
//
// Over UDP an answer is in time if it reached this machine in time: its arrival is the kernel's time stamp, not the
// moment at which this program came to read it. On a machine with one busy processor those are far apart, and it is the
// service that is measured, not the client.
package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Config says what to ask.
type Config struct {
	// Server is the address and port that is asked, and the only one: this measures failover, so there is no fallback.
	Server netip.AddrPort
	// Network is udp or tcp.
	Network string
	// Names are asked in turn, type A.
	Names []string
	// Rate is in questions a second.
	Rate int
	// Deadline is how long a question waits for its answer.
	Deadline time.Duration
	// Limit ends the load, however long the caller lets it run.
	Limit time.Duration
	// Ask asks in place of an exchange with Server, as a resolver does that finds its servers itself. It returns who
	// answered, and is late if it takes longer than Deadline, by which its context ends.
	Ask func(ctx context.Context, name string) (by string, err error)
}

// Validate returns all problems joined.
func (c Config) Validate() error {
	var problems []error
	if !c.Server.IsValid() && c.Ask == nil {
		problems = append(problems, errors.New("server: no address"))
	}
	if c.Network != "udp" && c.Network != "tcp" {
		problems = append(problems, fmt.Errorf("network: %q is neither udp nor tcp", c.Network))
	}
	if len(c.Names) == 0 {
		problems = append(problems, errors.New("names: none"))
	}
	if c.Rate < 1 || c.Rate > 10_000 {
		problems = append(problems, fmt.Errorf("rate: %d a second is not between 1 and 10,000", c.Rate))
	}
	if c.Deadline <= 0 {
		problems = append(problems, errors.New("deadline: not positive"))
	}
	if c.Limit <= 0 || c.Limit > 10*time.Minute {
		problems = append(problems, fmt.Errorf("limit: %s is not between 0 and 10 minutes", c.Limit))
	}
	return errors.Join(problems...)
}

// Run asks until ctx ends or Limit has passed, waits for the questions under way, and returns what happened.
func Run(ctx context.Context, c Config) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, fmt.Errorf("load: %w", err)
	}
	keep, err := keepStamping()
	if err != nil {
		return Result{}, fmt.Errorf("load: %w", err)
	}
	defer func() { _ = keep.Close() }()
	var (
		start   = time.Now()
		step    = time.Second / time.Duration(c.Rate)
		end     = int(c.Limit / step)
		answers = make([]Answer, end)
		wg      sync.WaitGroup
		sent    int
	)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for sent < end {
		// Against the start, not the last question: a late one does not slow down those after it.
		timer.Reset(time.Until(start.Add(time.Duration(sent) * step)))
		select {
		case <-ctx.Done():
			end = sent
			continue
		case <-timer.C:
		}
		answer, name := &answers[sent], c.Names[sent%len(c.Names)]
		sent++
		wg.Go(func() {
			// The deadline of a question must not be cut short by the end of the load.
			*answer = ask(context.WithoutCancel(ctx), c, name, start)
		})
	}
	wg.Wait()
	return Summarize(c, answers[:sent], start), nil
}

// ask asks one question from a new socket.
func ask(ctx context.Context, c Config, name string, start time.Time) Answer {
	a := Answer{SentMS: milliseconds(time.Since(start))}
	by, took, err := exchange(ctx, c, name)
	a.TookMS = milliseconds(took)
	if err != nil {
		a.Error = reason(err)
		return a
	}
	a.By = by
	return a
}

// exchange gets one answer, and tells who gave it and how long that took.
func exchange(ctx context.Context, c Config, name string) (by string, took time.Duration, err error) {
	switch {
	case c.Ask != nil:
		ctx, cancel := context.WithTimeout(ctx, c.Deadline)
		defer cancel()
		begin := time.Now()
		by, err := c.Ask(ctx, name)
		if took = time.Since(begin); err == nil && took > c.Deadline {
			err = os.ErrDeadlineExceeded
		}
		return by, took, err
	case c.Network == "tcp":
		return overTCP(ctx, c, Question(name))
	default:
		return overUDP(ctx, c, Question(name))
	}
}

// reason shortens an error to what is worth counting.
func reason(err error) string {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "timeout"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
