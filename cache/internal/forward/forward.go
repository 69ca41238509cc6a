package forward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// Forward asks one set of upstreams. It is safe for use by many goroutines.
type Forward struct {
	cfg     Config
	log     *slog.Logger
	metrics *Metrics

	ups      atomic.Pointer[[]*upstream]
	turn     atomic.Uint32 // of round robin
	inflight atomic.Int64
	loops    *loopProber // nil without LoopZones
	confs    *resolvConfs

	life  context.Context // of the goroutines; ends after the last exchange
	end   context.CancelFunc
	group group
	calls sync.Pool // of *call
}

// New makes a Forward. It opens no sockets. With a resolv.conf file that names no
// server (yet) it succeeds, and Exchange fails until there is one.
func New(cfg Config, log *slog.Logger, m *Metrics) (*Forward, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring forward: %w", err)
	}
	f := &Forward{cfg: cfg.withDefaults(), log: log, metrics: m}
	f.life, f.end = context.WithCancel(context.Background())
	f.calls.New = func() any { return newCall() }
	if len(cfg.LoopZones) > 0 {
		f.loops = newLoopProber(f)
	}
	f.ups.Store(new([]*upstream))
	f.confs = newResolvConfs(f)
	f.confs.update()
	return f, nil
}

// Run watches the resolv.conf files and probes for loops until ctx ends. Then it waits
// for the exchanges under way, at most Config.Timeout, and closes all connections. A
// Forward that was never run is closed by running it with a context that has ended.
func (f *Forward) Run(ctx context.Context) error {
	var background sync.WaitGroup
	if len(f.cfg.ResolvConf) > 0 {
		background.Go(func() { f.confs.watch(ctx) })
	}
	if f.loops != nil {
		background.Go(func() { f.loops.run(ctx) })
	}
	<-ctx.Done()
	background.Wait()
	f.waitIdle()
	f.end()
	var closing sync.WaitGroup
	for _, u := range *f.ups.Load() {
		closing.Go(u.close)
	}
	closing.Wait()
	f.group.wait()
	return nil
}

// waitIdle returns when no exchange is under way, or none can be any more.
func (f *Forward) waitIdle() {
	bound := time.NewTimer(f.cfg.Timeout)
	defer bound.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for f.inflight.Load() > 0 {
		select {
		case <-poll.C:
		case <-bound.C:
			return
		}
	}
}

// Exchange sends query, a packed message whose ID does not matter, and returns the
// reply packed, its ID undefined, owned by the caller. The reply is to the question that
// was asked, and sound; it has TC set only if TCP was not to be had, from any upstream. Errors: wire.ErrBusy,
// wire.ErrNoUpstream, wire.ErrLoop, wire.ErrMalformed for a query without a question,
// those of ctx, and those of the sockets.
func (f *Forward) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	n := f.inflight.Add(1)
	defer f.inflight.Add(-1)
	if f.cfg.MaxConcurrent > 0 && n > int64(f.cfg.MaxConcurrent) {
		f.metrics.rejects.Inc()
		return nil, wire.ErrBusy
	}
	q, ok := readQuery(query)
	if !ok {
		return nil, wire.ErrMalformed
	}
	if f.cfg.Probes.seen(q) {
		return nil, wire.ErrLoop
	}
	var room [16]*upstream
	list, err := f.choose(room[:0], q)
	if err != nil {
		return nil, err
	}
	return f.tryAll(ctx, q, list)
}

// passes is how often each upstream is tried for one query.
const passes = 2

// tryAll asks the upstreams in order, each at most twice, until one has an answer or the
// time is up. A second time is for those that said nothing: a packet may have been lost.
func (f *Forward) tryAll(ctx context.Context, q query, list []*upstream) ([]byte, error) {
	began := time.Now()
	deadline := began.Add(f.cfg.Timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	var cut, failure []byte // replies that are worse than an answer
	var err error
	silent := false
	var timedOut uint64 // by place in list; beyond 64 nobody looks
	for try := range passes * len(list) {
		if try == len(list) && (cut != nil || !silent) {
			break
		}
		u := list[try%len(list)]
		now := time.Now()
		end := now.Add(f.cfg.ReadTimeout)
		last := try == passes*len(list)-1
		if last || deadline.Before(end) {
			end = deadline
		}
		if try > 0 && (!now.Before(deadline) || ctx.Err() != nil) {
			break
		}
		var silentSince time.Time
		if try >= len(list) && timedOut>>(try-len(list))&1 != 0 {
			silentSince = began
		}
		got, terr := u.exchange(ctx, q, end, silentSince)
		switch {
		case terr == nil:
			u.replied(now, got)
			if !f.failover(got) || try >= len(list)-1 {
				return got, nil
			}
			failure = got
		case got != nil:
			u.replied(now, got)
			cut = got
		case ctx.Err() != nil:
			terr = context.Cause(ctx)
		case !errors.Is(terr, wire.ErrMalformed):
			silent = true
			if errors.Is(terr, os.ErrDeadlineExceeded) {
				timedOut |= 1 << try
			}
			if !errors.Is(terr, wire.ErrBusy) {
				u.failed()
			}
		}
		if !errors.Is(err, wire.ErrBusy) { // it says most: somebody was not even asked
			err = terr
		}
	}
	switch {
	case cut != nil:
		return cut, nil
	case failure != nil:
		return failure, nil // a response code to fail over from, and nobody had a better one
	}
	return nil, err
}

// failover tells whether the next upstream shall be asked after this reply.
func (f *Forward) failover(reply []byte) bool {
	return slices.Contains(f.cfg.Failover, int(reply[3]&15))
}

// replace makes targets the upstreams from now on; those that were upstreams before keep
// their connections and what is known of their health.
func (f *Forward) replace(targets []Target) {
	old := *f.ups.Load()
	byTarget := make(map[Target]*upstream, len(old))
	for _, u := range old {
		byTarget[u.target] = u
	}
	var ups []*upstream
	for _, t := range targets {
		u := byTarget[t]
		if u == nil {
			u = newUpstream(f, t)
		}
		delete(byTarget, t)
		ups = append(ups, u)
	}
	f.ups.Store(&ups)
	for _, u := range byTarget {
		u.retire()
	}
}

// group is a wait group that can be closed: goroutines may be started from exchanges
// that come in at any time, also while Run ends.
type group struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// start runs f in a goroutine; false if the group is closed.
func (g *group) start(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Go(f)
	return true
}

// wait closes the group and returns when its goroutines have ended.
func (g *group) wait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wg.Wait()
}
