package readiness

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// staleFor bounds the time for which a Pod's status from before a boot is doubted: kubelet, which has reported the boot,
// reports its Pods within seconds; after that the status is right, and the two reports only came in the other order.
const staleFor = 2 * time.Minute

// memory is how many different placements are remembered, with their side of the hysteresis and their last verdict.
const memory = 1024

// Summary is the state of the whole cluster.
type Summary struct {
	// Nodes is the number of nodes that take ordinary Pods, Usable how many of them have a usable cache.
	Nodes, Usable int
	// Unproven is how many nodes have a usable cache whose readiness does not prove its backstop.
	Unproven int
	// On is false while the breaker keeps Pods from being injected.
	On bool
}

// Tracker holds the picture. It is safe for concurrent use.
type Tracker struct {
	cfg     Config
	changed chan struct{} // a wake-up for Run: the summary may have changed
	notify  func(Summary)

	// allUsable is true while every node is, allProven while every cache proves its backstop besides: the answer for any
	// placement that names no node, without a lock.
	allUsable, allProven atomic.Bool

	mu       sync.RWMutex
	synced   bool
	on       bool
	nodes    map[string]*node
	order    []*node // the same nodes, to walk fast
	down     map[*node]struct{}
	open     int // nodes an ordinary Pod may land on
	openDown int
	unproven int    // nodes that are usable by a cache which does not prove its backstop
	version  uint64 // grows with each change that a verdict may depend on
	allAt    uint64 // the version when last every node was usable, which puts every placement on its upper side

	verdicts *lru.Cache
}

// node is one Node and the cache on it. A cache Pod may be seen before its Node: then object is nil.
type node struct {
	name   string
	object *corev1.Node
	index  int // in order, -1 while not counted
	open   bool
	pods   map[types.UID]podState

	boot   string // the last that was seen
	usable bool
	// proven says that the cache that was last ready proved its backstop; unproven that the node is counted as without.
	proven, unproven bool
	// readyBoot is the boot in which a cache was last ready, lost when it ceased to be; both are zero if never.
	readyBoot string
	lost      time.Time
}

// podState is what is known of one cache Pod.
type podState struct {
	ready  bool
	proves bool // being ready means that guard and backstop are armed
	// life changes whenever the Pod becomes ready anew. A ready Pod whose life is from an earlier boot is only a status
	// that kubelet has not come to update, and is not believed until staleUntil.
	life       uint64
	staleUntil time.Time
}

// New makes a Tracker that knows no nodes. notify, which may be nil, is called by Run after the breaker has turned.
func New(cfg Config, notify func(Summary)) (*Tracker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Tracker{
		cfg:      cfg.withDefaults(),
		changed:  make(chan struct{}, 1),
		notify:   notify,
		nodes:    map[string]*node{},
		down:     map[*node]struct{}{},
		verdicts: lru.New(memory),
	}, nil
}

// Synced says that the picture is complete; until then nothing is ready.
func (t *Tracker) Synced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.synced = true
	t.settleLocked()
	t.wake()
}

// Summary is the state of the whole cluster at this moment.
func (t *Tracker) Summary() Summary {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.summaryLocked()
}

func (t *Tracker) summaryLocked() Summary {
	return Summary{Nodes: t.open, Usable: t.open - t.openDown, Unproven: t.unproven, On: t.on}
}

// Run lets the grace of lost caches run out and reports the breaker, until ctx ends.
func (t *Tracker) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	reported, first := Summary{}, true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			t.expire()
			continue
		case <-t.changed:
		}
		now := t.Summary()
		if t.notify != nil && (first || now.On != reported.On) {
			t.notify(now)
		}
		reported, first = now, false
	}
}

// expire ends the grace of nodes whose cache has been away for too long.
func (t *Tracker) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.order {
		if n.usable != n.ready() {
			t.judgeLocked(n)
		}
	}
	t.settleLocked()
}

// settleLocked brings what is derived from the counts up to date.
func (t *Tracker) settleLocked() {
	if !t.synced {
		return
	}
	was := t.on
	t.on = t.cfg.decide(t.openDown, t.open, t.on)
	all := t.on && len(t.down) == 0 && len(t.order) > 0
	t.allProven.Store(all && t.unproven == 0)
	t.allUsable.Store(all)
	if all {
		t.allAt = t.version
	}
	if t.on != was {
		t.version++
		t.wake()
	}
}

func (t *Tracker) wake() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// decide applies the hysteresis to a set of nodes of which down are not usable.
func (c Config) decide(down, total int, was bool) bool {
	if total == 0 {
		return false
	}
	fraction := float64(total-down) / float64(total)
	switch {
	case fraction >= c.On:
		return true
	case fraction < c.Off:
		return false
	default:
		return was
	}
}
