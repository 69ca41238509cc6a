package forward

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	loopTimeout = 2 * time.Second // of one probe
	loopRecheck = 2 * time.Second // while there is a loop
	loopGap     = time.Second     // between two rounds at least
)

// loopProber finds out whether queries sent to an upstream come back to this process. It
// sends each one a question for a name that nobody else can know; if Exchange is then
// asked to forward that very name, there is a loop. An upstream that loops gets no
// queries, only probes, until one is not seen again. One that does not reply is not a
// loop.
type loopProber struct {
	f     *Forward
	kick  chan struct{} // a query failed, maybe by a loop
	sent  atomic.Int32  // len of names, to spare other queries the lock
	mu    sync.Mutex
	names map[string]*atomic.Bool // first label, length included → seen
}

func newLoopProber(f *Forward) *loopProber {
	return &loopProber{f: f, kick: make(chan struct{}, 1), names: make(map[string]*atomic.Bool)}
}

// suspect asks for a round of probes soon.
func (l *loopProber) suspect() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// seen tells whether q is a probe that came back.
func (l *loopProber) seen(q query) bool {
	if l.sent.Load() == 0 || q.qtype() != typeHINFO {
		return false
	}
	label := q.msg[headerLen : headerLen+1+int(q.msg[headerLen])]
	l.mu.Lock()
	defer l.mu.Unlock()
	came, ok := l.names[lowered(label)]
	if ok {
		came.Store(true)
	}
	return ok
}

// lowered is a label in lower case: a forwarder on the way may have changed it.
func lowered(label []byte) string {
	b := append([]byte(nil), label...)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
	return string(b)
}

// run probes at once, then now and then, and soon after a query has failed.
func (l *loopProber) run(ctx context.Context) {
	for {
		wait := l.f.cfg.LoopInterval
		if l.round(ctx) {
			wait = loopRecheck
		}
		// Not all nodes of a cluster at the same time.
		wait += rand.N(wait / 4)
		if !sleep(ctx, min(wait, loopGap), nil) || !sleep(ctx, wait-loopGap, l.kick) {
			return
		}
	}
}

// sleep waits for d, or less if early says so; false if ctx has ended.
func sleep(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-early:
	}
	return true
}

// round probes every upstream, all at the same time, and tells whether one loops.
func (l *loopProber) round(ctx context.Context) bool {
	var wg sync.WaitGroup
	var found atomic.Bool
	for _, u := range *l.f.ups.Load() {
		wg.Go(func() {
			loops := false
			for _, zone := range l.f.cfg.LoopZones {
				loops = loops || l.probe(ctx, u, zone)
			}
			if ctx.Err() != nil {
				return
			}
			if loops {
				found.Store(true)
			}
			l.note(u, loops)
		})
	}
	wg.Wait()
	return found.Load()
}

// note keeps and tells what a probe found.
func (l *loopProber) note(u *upstream, loops bool) {
	switch was := u.loops.Swap(loops); {
	case loops && !was:
		l.f.log.Error("forwarding loop: queries to this upstream come back here; it gets none until that ends",
			"upstream", u.target, "zones", l.f.cfg.LoopZones)
	case !loops && was:
		l.f.log.Info("forwarding loop has ended", "upstream", u.target)
	}
	if loops {
		u.metrics.loop.Inc()
	}
}

// probe tells whether a query for zone that is sent to u comes back.
func (l *loopProber) probe(ctx context.Context, u *upstream, zone string) bool {
	name := loopLabel(rand.Uint64())
	msg, err := loopQuery(name, zone)
	if err != nil {
		return false // not reached: Validate has packed it
	}
	q, _ := readQuery(msg)
	came := new(atomic.Bool)
	key := string(rune(len(name))) + name
	l.mu.Lock()
	l.names[key] = came
	l.sent.Add(1)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.names, key)
		l.sent.Add(-1)
	}()
	// Whether it is answered is of no interest, only whether it comes back first.
	_ = u.ask(ctx, q, time.Now().Add(loopTimeout))
	return came.Load()
}

// loopLabel is a label of 13 letters and digits.
func loopLabel(n uint64) string { return strconv.FormatUint(n|1<<63, 36) }
