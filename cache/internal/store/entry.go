package store

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// Kind tells which of the two capacities an answer counts against.
type Kind uint8

// The kinds, named as in the cache directive.
const (
	Success Kind = iota
	Denial

	kinds
)

// String returns the name used in metric labels.
func (k Kind) String() string {
	if k == Denial {
		return "denial"
	}
	return "success"
}

// Entry is an answer with its lifetime. The answer never changes; a new answer to the
// same question is a new Entry. What does change are notes about its use, all atomic.
//
// The fields that a look-up reads come first, 64 octets, a line of the CPU's cache.
type Entry struct {
	chain atomic.Pointer[Entry] // next in the bucket
	wire.Answer
	tag    uint32        // bits of the hash, to pass over strangers in the bucket
	life   uint32        // seconds
	stored time.Duration // on the store's clock

	visited atomic.Bool
	kind    Kind
	uses    atomic.Uint64 // time of the last counted use (seconds, upper half) and their number
	retry   atomic.Int64  // when a refresh may be tried; math.MaxInt64 while one runs

	newer, older *Entry // in the order of arrival; the store's mutex guards them
}

// NewEntry returns an entry and n octets for its answer, which the caller sets before the
// entry is put. They are one piece of memory: with many entries a look-up is as quick as
// memory is, and each piece in another place costs as much as all the rest.
func NewEntry(n int) (e *Entry, room []byte) {
	switch {
	case n <= 88: // with the entry 192 octets, a size the allocator has
		p := new(struct {
			e Entry
			b [88]byte
		})
		return &p.e, p.b[:]
	case n <= 120: // 224
		p := new(struct {
			e Entry
			b [120]byte
		})
		return &p.e, p.b[:]
	case n <= 152: // 256
		p := new(struct {
			e Entry
			b [152]byte
		})
		return &p.e, p.b[:]
	case n <= 216: // 320
		p := new(struct {
			e Entry
			b [216]byte
		})
		return &p.e, p.b[:]
	case n <= 312: // 416
		p := new(struct {
			e Entry
			b [312]byte
		})
		return &p.e, p.b[:]
	case n <= 472: // 576
		p := new(struct {
			e Entry
			b [472]byte
		})
		return &p.e, p.b[:]
	}
	return new(Entry), make([]byte, n)
}

// entrySize is the size of an Entry without its answer's octets.
const entrySize = 120

// cost returns the octets that count against the bound of the store.
func (e *Entry) cost() int64 { return int64(e.Size()) + entrySize }

// Kind returns the kind under which e is kept.
func (e *Entry) Kind() Kind { return e.kind }

// Age returns the time since e was stored.
func (e *Entry) Age(now time.Duration) time.Duration { return now - e.stored }

// Life returns the lifetime that e was stored with.
func (e *Entry) Life() time.Duration { return time.Duration(e.life) * time.Second }

// Left returns what remains of the lifetime; zero or less once it has ended.
func (e *Entry) Left(now time.Duration) time.Duration { return e.Life() - e.Age(now) }

// Use counts a use, up to enough, and returns the number. After a gap without any use
// counting begins anew.
func (e *Entry) Use(now, gap time.Duration, enough uint32) uint32 {
	sec := uint64(now / time.Second)
	old := e.uses.Load()
	last, n := old>>32, uint32(old)
	if time.Duration(sec-last)*time.Second > gap && n > 0 {
		n = 0
	}
	if n >= enough && last == sec {
		return n // nothing to note: a hot entry must not make cores fight over it
	}
	n = min(n+1, enough)
	e.uses.CompareAndSwap(old, sec<<32|uint64(n))
	return n
}

// BeginRefresh tells whether the caller may refresh e: nobody else does, and the last
// failure is long enough ago. Who gets true must call EndRefresh.
func (e *Entry) BeginRefresh(now time.Duration) bool {
	at := e.retry.Load()
	return at <= int64(now) && e.retry.CompareAndSwap(at, math.MaxInt64)
}

// EndRefresh ends a refresh and forbids another before the given time.
func (e *Entry) EndRefresh(before time.Duration) { e.retry.Store(int64(before)) }

// Resting tells whether a refresh runs or failed so lately that BeginRefresh would
// refuse.
func (e *Entry) Resting(now time.Duration) bool { return e.retry.Load() > int64(now) }

// Refreshing tells whether a refresh runs.
func (e *Entry) Refreshing() bool { return e.retry.Load() == math.MaxInt64 }
