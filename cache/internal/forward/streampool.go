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

	// heldUp is how long a connection may owe replies in silence before new queries
	// take another one.
	heldUp = 10 * time.Millisecond
)

var (
	// errStale is the end of a connection that was in use before this query came to it:
	// it says nothing about the server, only that the query has to be sent again.
	errStale = errors.New("connection went stale")
	errFull  = errors.New("all connections are full")
	errGone  = wire.ErrClosed
)

// streamPool holds the TCP or TLS connections to one upstream.
type streamPool struct {
	up *upstream

	// reply time, averaged, in nanoseconds; 0 is not known yet
	latency atomic.Int64
	idle    atomic.Int32 // connections kept although they carry no query

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

// exchange sends q down a connection and waits for the reply. If a connection dies that
// was in use before, q is sent again at once on one that is newer, never on another old
// one, which will be as dead.
func (p *streamPool) exchange(ctx context.Context, q query, end time.Time) ([]byte, error) {
	c := p.up.f.calls.Get().(*call)
	defer p.up.f.calls.Put(c)
	c.reset(q, end)
	newer := uint64(0)
	for range restarts {
		s, fresh, err := p.pick(newer, c.alone)
		if err != nil {
			return nil, fmt.Errorf("asking %s: %w", p.up.target, err)
		}
		if fresh {
			p.up.metrics.stream.misses.Inc()
		} else {
			p.up.metrics.stream.hits.Inc()
		}
		reply, err := s.roundTrip(ctx, c)
		if err == nil {
			return reply, nil
		}
		if !errors.Is(err, errStale) || !time.Now().Before(end) {
			return nil, fmt.Errorf("asking %s over %s: %w", p.up.target, s.proto(), err)
		}
		newer = s.serial
	}
	return nil, fmt.Errorf("asking %s: %w", p.up.target, errStale)
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
	depth, now := p.depth(), time.Now()
	var least *stream
	for _, s := range p.streams {
		if alone || s.serial <= newer || s.closing.Load() || s.stalled.Load() {
			continue
		}
		n := s.inflight.Load()
		if int(n) < depth && !s.heldUp(now) {
			if depth == p.up.f.cfg.MaxPipeline {
				return s, false, nil
			}
		}
		if least == nil || n < least.inflight.Load() {
			least = s
		}
	}
	open, limit := len(p.streams), p.up.f.cfg.MaxConns
	if least != nil {
		n := int(least.inflight.Load())
		if n < depth && !least.heldUp(now) || n < p.up.f.cfg.MaxPipeline && open >= limit {
			return least, false, nil
		}
	}
	// Dead or hanging connections do not keep a query from a new one, up to a point.
	if least == nil && open >= 2*limit || least != nil && open >= limit {
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
	c := new(call)
	c.done = make(chan struct{}, 1)
	c.reset(q, end)
	s, _, err := p.pick(newer, false)
	if err != nil {
		return err
	}
	_, err = s.roundTrip(ctx, c)
	return err
}
