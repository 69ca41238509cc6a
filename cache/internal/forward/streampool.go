package forward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// How many queries one connection carries before another one is opened. A server that
// answers at once may get all of them down one connection, which makes for few system
// calls. One that takes its time may well work through a connection one query after the
// other (RFC 7766 section 6.2.1.1 only says SHOULD), so its queries are spread.
const (
	quickReply   = 3 * time.Millisecond
	depthUnknown = 2
	depthSlow    = 4

	// burst is how many queries one connection carries at most since it last had a reply:
	// how quick the server was before says nothing about them yet.
	burst = 24

	// heldUp is how long a connection may owe replies in silence before new queries
	// take another one.
	heldUp = 10 * time.Millisecond
)

var (
	// errStale is the end of a connection that was in use before this query came to it:
	// it says nothing about the server, only that the query has to be sent again.
	errStale = errors.New("connection went stale")
	errFull  = fmt.Errorf("all connections are full: %w", wire.ErrBusy)
	errGone  = wire.ErrClosed
)

// streamPool holds the TCP or TLS connections to one upstream.
type streamPool struct {
	up *upstream

	// reply time, averaged, in nanoseconds; 0 is not known yet
	latency atomic.Int64
	idle    atomic.Int32 // connections kept although they carry no query

	// Times since the upstream's birth; see streamprobe.go.
	probed, won, wonSince atomic.Int64

	mu      sync.Mutex
	streams []*stream
	last    uint64 // serial number of the newest
	closed  bool
	retired bool // new connections are for what is under way only
}

func newStreamPool(u *upstream) *streamPool { return &streamPool{up: u} }

// restarts bounds how often a query moves to another connection: a server that closes
// each one after a reply lets one query through per connection.
const restarts = 16

// try is a query on its way over one connection; the zero value is none.
type try struct {
	c *call
	s *stream
}

func (t try) done() <-chan struct{} {
	if t.c == nil {
		return nil
	}
	return t.c.done
}

// exchange sends q down a connection and waits for the reply. If a connection dies that
// was in use before, q is sent again at once on one that is newer, never on another old
// one, which will be as dead. If one is silent, q may go over a second one besides.
func (p *streamPool) exchange(ctx context.Context, q query, end time.Time) ([]byte, error) {
	var first, second try
	if err := p.begin(&first, q, end, 0, false); err != nil {
		return nil, err
	}
	for moves := 0; ; {
		ended, other := &first, &second
		select {
		case <-first.c.done:
		case <-second.done():
			ended, other = &second, &first
		case <-first.c.elsewhere:
			if second.c == nil {
				p.beginSecond(&second, &first)
			}
			continue
		case <-ctx.Done():
			p.abandon(&second)
			if reply := p.abandon(&first); reply != nil {
				return reply, nil // which came meanwhile
			}
			return nil, fmt.Errorf("asking %s: %w", p.up.target, context.Cause(ctx))
		}
		reply, err, sent, s := ended.c.reply, ended.c.err, ended.c.sent, ended.s
		p.release(ended)
		switch {
		case err == nil:
			if ended == &second {
				p.overtook(sent)
			}
			p.abandon(other)
			return reply, nil
		case other.c != nil:
			first, second = *other, try{}
			continue
		case !errors.Is(err, errStale) || !time.Now().Before(end):
			return nil, fmt.Errorf("asking %s over %s: %w", p.up.target, s.proto(), err)
		}
		if moves++; moves == restarts {
			return nil, fmt.Errorf("asking %s: %w", p.up.target, errStale)
		}
		if err := p.begin(&first, q, end, s.serial, false); err != nil {
			return nil, err
		}
	}
}

// beginSecond sends what is under way on a silent connection over another one. Without
// one to be had, the first may still answer.
func (p *streamPool) beginSecond(second, first *try) {
	c := first.c
	if c.alone && p.begin(second, c.q, c.end, 0, true) == nil {
		return
	}
	_ = p.begin(second, c.q, c.end, first.s.serial, false)
}

// begin sends q over a connection as pick finds it and makes t the try.
func (p *streamPool) begin(t *try, q query, end time.Time, newer uint64, alone bool) error {
	for range restarts {
		s, fresh, err := p.pick(newer, alone)
		if err != nil {
			return fmt.Errorf("asking %s: %w", p.up.target, err)
		}
		c := p.up.f.calls.Get().(*call)
		c.reset(q, end)
		if s.add(c) == nil {
			if fresh {
				p.up.metrics.stream.misses.Inc()
			} else {
				p.up.metrics.stream.hits.Inc()
			}
			t.c, t.s = c, s
			return nil
		}
		p.up.f.calls.Put(c)
		newer = s.serial
	}
	return fmt.Errorf("asking %s: %w", p.up.target, errStale)
}

// abandon ends t, if it is one; a reply that has come already is returned.
func (p *streamPool) abandon(t *try) (reply []byte) {
	if t.c == nil {
		return nil
	}
	if !t.s.withdraw(t.c) {
		<-t.c.done
		reply = t.c.reply
	}
	p.release(t)
	return reply
}

// release gives the call of a try that has ended back.
func (p *streamPool) release(t *try) {
	p.up.f.calls.Put(t.c)
	*t = try{}
}

// pick returns a connection among those newer than the serial number, or a new one; fresh
// tells which.
//
// While the server replies at once, the first that is not held up is taken, so that
// queries gather on few connections; otherwise the one with the fewest queries. With
// alone set it is a new one that nobody else gets.
func (p *streamPool) pick(newer uint64, alone bool) (s *stream, fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, errGone
	}
	depth := p.depth()
	now := time.Now()
	var least, stalled *stream
	full := false
	for _, s := range p.streams {
		if alone || s.serial <= newer || s.closing.Load() {
			continue
		}
		n := int(s.inflight.Load())
		if n >= p.up.f.cfg.MaxPipeline {
			full = true
			continue
		}
		if s.stalled.Load() {
			if stalled == nil || n < int(stalled.inflight.Load()) {
				stalled = s
			}
			continue
		}
		if depth == p.up.f.cfg.MaxPipeline && !s.heldUp(now) && s.burst.Load() < burst {
			return s, false, nil
		}
		if least == nil || n < int(least.inflight.Load()) {
			least = s
		}
	}
	if least != nil && int(least.inflight.Load()) < depth && least.burst.Load() < burst && !least.heldUp(now) {
		return least, false, nil
	}
	// Dead or hanging connections do not keep a query from a new one, up to a point.
	// Beyond it they are better than none.
	switch open, limit := len(p.streams), p.up.f.cfg.MaxConns; {
	case least != nil && open >= limit:
		return least, false, nil
	case open < limit || !full && open < 2*limit:
	case stalled != nil:
		return stalled, false, nil
	default:
		return nil, false, errFull
	}
	p.last++
	s = newStream(p, p.last)
	s.closing.Store(alone || p.retired)
	if !p.up.f.group.start(s.run) {
		s.timer.Stop()
		return nil, false, errGone
	}
	p.streams = append(p.streams, s)
	return s, true, nil
}

// depth is how many queries a connection carries before another one is opened.
func (p *streamPool) depth() int {
	switch latency := p.latency.Load(); {
	case latency == 0:
		return depthUnknown
	case latency < int64(quickReply):
		return p.up.f.cfg.MaxPipeline
	default:
		return depthSlow
	}
}

// measured adds one reply's time to the average.
func (p *streamPool) measured(took time.Duration) {
	old := p.latency.Load()
	if old == 0 {
		old = int64(took)
	}
	p.latency.Store(max(1, old+(int64(took)-old)/8)) // a lost update does no harm
}

func (p *streamPool) remove(s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.streams, s); i >= 0 {
		p.streams = slices.Delete(p.streams, i, i+1) // in order: the first is preferred
	}
}

// retire lets the connections end with their last reply.
func (p *streamPool) retire() {
	p.mu.Lock()
	p.retired = true
	streams := slices.Clone(p.streams)
	p.mu.Unlock()
	for _, s := range streams {
		s.retire()
	}
}

// close ends all connections and takes no queries any more.
func (p *streamPool) close() {
	p.mu.Lock()
	p.closed = true
	streams := slices.Clone(p.streams)
	p.mu.Unlock()
	var closing sync.WaitGroup
	for _, s := range streams {
		closing.Go(func() { s.fail(errGone) })
	}
	closing.Wait()
}

// fresh makes a connection that carries one query first, and is of use to others if
// that is answered.
func (p *streamPool) fresh(ctx context.Context, q query, end time.Time) error {
	p.mu.Lock()
	newer := p.last
	p.mu.Unlock()
	var t try
	if err := p.begin(&t, q, end, newer, false); err != nil {
		return err
	}
	select {
	case <-t.c.done:
		err := t.c.err
		p.release(&t)
		return err
	case <-ctx.Done():
		p.abandon(&t)
		return context.Cause(ctx)
	}
}
