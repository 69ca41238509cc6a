package store

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// Store is a bounded set of answers.
//
// The index is an array of buckets, each a chain of entries through atomic pointers.
// Readers follow it without a lock; an entry that is taken out keeps its own pointer, so
// a reader that stands on it still gets to the rest. Writers hold one mutex: they come
// at the rate of misses and stay for less than a microsecond.
type Store struct {
	cfg     Config
	epoch   time.Time
	seed    maphash.Seed
	buckets []atomic.Pointer[Entry]
	mask    uint64

	mu     sync.Mutex
	queues [kinds]queue
	bytes  int64

	lens      [kinds]atomic.Int64
	evictions [kinds]atomic.Uint64
}

// smallAnswer is what a denial takes at least, in octets.
const smallAnswer = 40

// New returns an empty store. cfg must be valid.
func New(cfg Config) *Store {
	cfg = cfg.withDefaults()
	most := min(int64(cfg.Success+cfg.Denial), max(cfg.Bytes/(entrySize+smallAnswer), 1)) // answers, at a time
	n := uint64(2) << bits.Len64(uint64(most-1))
	return &Store{
		cfg:     cfg,
		epoch:   time.Now(),
		seed:    maphash.MakeSeed(),
		buckets: make([]atomic.Pointer[Entry], n),
		mask:    n - 1,
	}
}

// Now returns the time on the store's clock, which steps of the wall clock do not move.
func (s *Store) Now() time.Duration { return time.Since(s.epoch) }

// At returns t on the store's clock, and Now for the zero time.
func (s *Store) At(t time.Time) time.Duration {
	if t.IsZero() {
		return s.Now()
	}
	return t.Sub(s.epoch)
}

// Len returns the number of answers of a kind, whatever their age.
func (s *Store) Len(k Kind) int { return int(s.lens[k].Load()) }

// Evictions returns how many answers of a kind had to go for want of room.
func (s *Store) Evictions(k Kind) uint64 { return s.evictions[k].Load() }

// Get returns the entry for question and variant as wire.Query gives them, or nil. It
// may have expired long ago.
func (s *Store) Get(question []byte, variant wire.Variant) *Entry {
	h := s.hash(maphash.Bytes(s.seed, question), variant)
	tag := uint32(h >> 32)
	for e := s.buckets[h&s.mask].Load(); e != nil; e = e.chain.Load() {
		if e.tag == tag && e.Answers(question, variant) {
			if !e.visited.Load() {
				e.visited.Store(true)
			}
			return e
		}
	}
	return nil
}

// hash mixes the variant in; an odd multiplier spreads it over bucket and tag.
func (s *Store) hash(h uint64, variant wire.Variant) uint64 {
	return h ^ uint64(variant)*0x9e3779b97f4a7c15
}

// Put stores e, a new entry that has its answer, for life, counted from now and rounded
// down to seconds, in the place of an older one to the same question. If keep is not nil
// and returns true for that older entry it stays. keep is called under the store's lock.
// It returns the entry that is stored now.
func (s *Store) Put(e *Entry, k Kind, now, life time.Duration, keep func(*Entry) bool) *Entry {
	h := s.hash(maphash.Bytes(s.seed, e.Question()), e.Variant())
	e.stored, e.life, e.tag, e.kind = now, uint32(life/time.Second), uint32(h>>32), k
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, old := s.findLocked(h, &e.Answer)
	if old != nil && keep != nil && keep(old) {
		return old
	}
	s.bytes += e.cost()
	if old != nil {
		s.bytes -= old.cost()
		e.visited.Store(old.visited.Load())
		e.uses.Store(old.uses.Load())
		e.chain.Store(old.chain.Load())
		slot.Store(e)
		if old.kind == k {
			s.queues[k].replace(old, e)
			s.makeRoomLocked(e, now)
			return e
		}
		s.queues[old.kind].remove(old)
		s.lens[old.kind].Add(-1)
	} else {
		e.chain.Store(slot.Load())
		slot.Store(e)
	}
	s.queues[k].push(e)
	s.lens[k].Add(1)
	s.makeRoomLocked(e, now)
	return e
}

// findLocked returns the entry for the same question as a, and the pointer to it; or
// nil, and the pointer to the head of the bucket.
func (s *Store) findLocked(h uint64, a *wire.Answer) (slot *atomic.Pointer[Entry], e *Entry) {
	head := &s.buckets[h&s.mask]
	slot = head
	for e = slot.Load(); e != nil; e = slot.Load() {
		if e.tag == uint32(h>>32) && e.Answers(a.Question(), a.Variant()) {
			return slot, e
		}
		slot = &e.chain
	}
	return head, nil
}

// makeRoomLocked evicts until the bounds hold again, but never spared.
func (s *Store) makeRoomLocked(spared *Entry, now time.Duration) {
	capacity := [kinds]int64{Success: int64(s.cfg.Success), Denial: int64(s.cfg.Denial)}
	for k := range kinds {
		for s.lens[k].Load() > capacity[k] && s.evictLocked(k, spared, now) {
		}
	}
	for s.bytes > s.cfg.Bytes {
		k := Success
		if s.lens[Denial].Load() > s.lens[Success].Load() {
			k = Denial
		}
		if !s.evictLocked(k, spared, now) && !s.evictLocked(1-k, spared, now) {
			return
		}
	}
}

// Bound makes bytes what Config.Bytes was until now. What does not fit any more goes.
func (s *Store) Bound(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Bytes = bytes
	s.makeRoomLocked(nil, s.Now())
}

// Remove takes out the entry for the question of a, if there is one.
func (s *Store) Remove(a *wire.Answer) {
	h := s.hash(maphash.Bytes(s.seed, a.Question()), a.Variant())
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot, e := s.findLocked(h, a); e != nil {
		s.removeLocked(slot, e)
	}
}

// removeLocked takes out e, to which slot points.
func (s *Store) removeLocked(slot *atomic.Pointer[Entry], e *Entry) {
	slot.Store(e.chain.Load())
	s.queues[e.kind].remove(e)
	s.bytes -= e.cost()
	s.lens[e.kind].Add(-1)
}

func (s *Store) evictLocked(k Kind, spared *Entry, now time.Duration) bool {
	victim := s.queues[k].victim(spared, func(e *Entry) bool {
		return e.Left(now)+s.cfg.Stale <= 0
	})
	if victim == nil {
		return false
	}
	h := s.hash(maphash.Bytes(s.seed, victim.Question()), victim.Variant())
	slot, _ := s.findLocked(h, &victim.Answer)
	s.removeLocked(slot, victim)
	s.evictions[k].Add(1)
	return true
}
