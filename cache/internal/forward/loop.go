package forward

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

const (
	loopTimeout = 2 * time.Second // of one probe
	loopRecheck = 2 * time.Second // while there is a loop
	loopGap     = time.Second     // between two rounds at least
)

// loopProber finds out whether queries sent to an upstream come back to this process. It
// sends each one a question for a name that nobody else can know; if Exchange, of this
// Forward or another that shares its Probes, is then asked to forward that very name,
// there is a loop. An upstream gets no queries for a zone in which it loops, only probes,
// until one is not seen again. One that does not reply is not a loop.
type loopProber struct {
	f     *Forward
	kick  chan struct{} // a query failed, maybe by a loop
	zones [][]byte      // folded wire forms of Config.LoopZones
}

func newLoopProber(f *Forward) *loopProber {
	l := &loopProber{f: f, kick: make(chan struct{}, 1)}
	for _, z := range f.cfg.LoopZones {
		name, _ := wire.ParseName(z) // Validate has seen it
		l.zones = append(l.zones, name)
	}
	return l
}

// zone is the bit that stands for the longest of the zones that q is in; 0 if there is
// none. What comes after the 63rd zone has one bit in common.
func (l *loopProber) zone(q query) (bit uint64) {
	name := lowered(q.msg[headerLen : q.end-4])
	longest := 0
	for i, z := range l.zones {
		if len(z) > longest && wire.Under(name, z) {
			longest, bit = len(z), zoneBit(i)
		}
	}
	return bit
}

func zoneBit(i int) uint64 { return 1 << min(i, 63) }

// suspect asks for a round of probes soon.
func (l *loopProber) suspect() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// run probes at once, again when this process surely listens, then now and then, and soon
// after a query has failed.
func (l *loopProber) run(ctx context.Context) {
	for first := true; ; first = false {
		wait := l.f.cfg.LoopInterval
		if l.round(ctx) || first {
			wait = min(wait, loopRecheck)
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

// round probes every upstream for every zone, all at the same time, and tells whether one
// loops.
func (l *loopProber) round(ctx context.Context) bool {
	var all sync.WaitGroup
	var found atomic.Bool
	for _, u := range *l.f.ups.Load() {
		all.Go(func() {
			loops := l.probeZones(ctx, u)
			if ctx.Err() != nil {
				return
			}
			if loops != 0 {
				found.Store(true)
			}
			l.note(u, loops)
		})
	}
	all.Wait()
	return found.Load()
}

// probeZones returns the zones in which u loops.
func (l *loopProber) probeZones(ctx context.Context, u *upstream) uint64 {
	var all sync.WaitGroup
	var loops atomic.Uint64
	for i, zone := range l.f.cfg.LoopZones {
		all.Go(func() {
			if l.probe(ctx, u, zone) {
				loops.Or(zoneBit(i))
			}
		})
	}
	all.Wait()
	return loops.Load()
}

// note tells and then keeps what the probes found.
func (l *loopProber) note(u *upstream, loops uint64) {
	defer u.loops.Store(loops)
	was := u.loops.Load()
	if begun := loops &^ was; begun != 0 {
		l.f.log.Error("forwarding loop: queries to this upstream come back here; it gets none in these zones until that ends",
			"upstream", u.target, "zones", l.names(begun))
	}
	if ended := was &^ loops; ended != 0 {
		l.f.log.Info("forwarding loop has ended", "upstream", u.target, "zones", l.names(ended))
	}
	if loops != 0 {
		u.metrics.loop.Inc()
	}
}

// names lists the zones that bits stand for.
func (l *loopProber) names(bits uint64) (names []string) {
	for i, zone := range l.f.cfg.LoopZones {
		if bits&zoneBit(i) != 0 {
			names = append(names, zone)
		}
	}
	return names
}

// probe tells whether a query for zone that is sent to u comes back.
func (l *loopProber) probe(ctx context.Context, u *upstream, zone string) bool {
	label := loopLabel(rand.Uint64())
	msg, err := loopQuery(label, zone)
	if err != nil {
		return false // not reached: Validate has packed it
	}
	q, _ := readQuery(msg)
	came := l.f.cfg.Probes.add(label)
	defer l.f.cfg.Probes.remove(label)
	// Whether it is answered is of no interest, only whether it comes back first.
	_ = u.ask(ctx, q, time.Now().Add(loopTimeout))
	return came.Load()
}

// loopLabel is a label of 13 letters and digits.
func loopLabel(n uint64) string { return strconv.FormatUint(n|1<<63, 36) }
