package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// question returns a folded question, and answerTo a new entry for it with one A record.
func question(name string, qtype byte) []byte {
	b, err := wire.ParseName(name)
	if err != nil {
		panic(err)
	}
	return append(b, 0, qtype, 0, 1)
}

func answerTo(t testing.TB, q []byte, v wire.Variant, addr uint32) *Entry {
	t.Helper()
	msg := append([]byte{0, 0, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}, q...)
	msg = append(msg, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
	msg = binary.BigEndian.AppendUint32(msg, addr)
	var r wire.Reply
	if err := r.Read(q, v, msg); err != nil {
		t.Fatal(err)
	}
	e, room := NewEntry(r.Size())
	e.Answer = r.Answer(room, 0, 3600)
	return e
}

func put(t testing.TB, s *Store, name string, k Kind) *Entry {
	t.Helper()
	return s.Put(answerTo(t, question(name, 1), 0, 1), k, s.Now(), time.Minute, nil)
}

func get(s *Store, name string) *Entry { return s.Get(question(name, 1), 0) }

// TestP18_EqualHashIsNotIdentity: all entries in one bucket, with equal tags.
func TestP18_EqualHashIsNotIdentity(t *testing.T) {
	s := New(Config{Success: 8, Denial: 8})
	s.buckets, s.mask = s.buckets[:1], 0
	type key struct {
		name    string
		qtype   byte
		variant wire.Variant
	}
	keys := []key{
		{"a.test", 1, 0}, {"b.test", 1, 0}, {"a.test", 28, 0}, {"a.test", 1, wire.DO}, {"a.test", 1, wire.CD}, {"a.test", 1, wire.DO | wire.CD},
	}
	for _, k := range keys {
		s.Put(answerTo(t, question(k.name, k.qtype), k.variant, 0), Success, 0, time.Minute, nil)
	}
	for _, k := range keys {
		q := question(k.name, k.qtype)
		h := s.hash(maphash.Bytes(s.seed, q), k.variant)
		for e := s.buckets[0].Load(); e != nil; e = e.chain.Load() {
			e.tag = uint32(h >> 32) // as if all had this hash
		}
		if e := s.Get(q, k.variant); e == nil || !bytes.Equal(e.Question(), q) || e.Variant() != k.variant {
			t.Errorf("%v: got another answer", k)
		}
	}
	if e := get(s, "c.test"); e != nil {
		t.Error("found what is not there")
	}
}

func TestCapacityIsExact(t *testing.T) {
	s := New(Config{Success: 1000, Denial: 500})
	for i := range 1000 {
		put(t, s, fmt.Sprintf("s%d.test", i), Success)
	}
	for i := range 500 {
		put(t, s, fmt.Sprintf("d%d.test", i), Denial)
	}
	for i := range 1000 {
		if get(s, fmt.Sprintf("s%d.test", i)) == nil {
			t.Fatalf("s%d went although there was room", i)
		}
	}
	if s.Evictions(Success)+s.Evictions(Denial) != 0 {
		t.Error("evicted although there was room")
	}
	for i := range 2000 { // denials do not drive out answers
		put(t, s, fmt.Sprintf("x%d.test", i), Denial)
	}
	if s.Len(Success) != 1000 || s.Len(Denial) != 500 || s.Evictions(Denial) != 2000 || s.Evictions(Success) != 0 {
		t.Errorf("success %d, denial %d, evictions %d and %d", s.Len(Success), s.Len(Denial), s.Evictions(Success), s.Evictions(Denial))
	}
	checkSound(t, s)
}

// TestFloodLeavesWhatIsUsed: names asked once pass through; those in use stay.
func TestFloodLeavesWhatIsUsed(t *testing.T) {
	s := New(Config{Success: 100, Denial: 10})
	for i := range 50 {
		put(t, s, fmt.Sprintf("hot%d.test", i), Success)
	}
	for i := range 5000 {
		put(t, s, fmt.Sprintf("cold%d.test", i), Success)
		get(s, fmt.Sprintf("hot%d.test", i%50))
	}
	for i := range 50 {
		if get(s, fmt.Sprintf("hot%d.test", i)) == nil {
			t.Errorf("hot%d went", i)
		}
	}
	checkSound(t, s)
}

// TestNewestSurvives: however hot the rest, what has just come is there.
func TestNewestSurvives(t *testing.T) {
	s := New(Config{Success: 3, Denial: 1})
	for i := range 10 {
		name := fmt.Sprintf("n%d.test", i)
		put(t, s, name, Success)
		if get(s, name) == nil {
			t.Errorf("%s is not there", name)
		}
		for j := range i {
			get(s, fmt.Sprintf("n%d.test", j))
		}
	}
	checkSound(t, s)
}

func TestDeadGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, stale := range []time.Duration{0, time.Hour} {
			s := New(Config{Success: 2, Denial: 1, Stale: stale})
			put(t, s, "dead.test", Success)
			get(s, "dead.test")
			time.Sleep(2 * time.Minute)
			put(t, s, "idle.test", Success)
			put(t, s, "new.test", Success)
			dead, idle := get(s, "dead.test"), get(s, "idle.test")
			if stale == 0 && (dead != nil || idle == nil) {
				t.Error("a dead entry stays and a live one goes")
			}
			if stale > 0 && (dead == nil || idle != nil) {
				t.Error("an entry in use, good as stale, goes before an idle one")
			}
		}
	})
}

func TestBytesAreBounded(t *testing.T) {
	s := New(Config{Success: 1000, Denial: 1000, Bytes: 20000})
	for i := range 1000 {
		put(t, s, fmt.Sprintf("name%d.test", i), Kind(i%2))
		if s.bytes > 20000 {
			t.Fatalf("%d bytes", s.bytes)
		}
	}
	if n := s.Len(Success) + s.Len(Denial); n < 100 {
		t.Errorf("only %d entries in 20000 bytes", n)
	}
	checkSound(t, s)
	s.Bound(5000)
	if n := s.Len(Success) + s.Len(Denial); s.bytes > 5000 || n < 20 {
		t.Errorf("%d bytes and %d entries under the new bound", s.bytes, n)
	}
	s.Bound(0)
	if n := s.Len(Success) + s.Len(Denial); n != 0 || s.bytes != 0 {
		t.Errorf("%d entries, %d bytes where nothing fits", n, s.bytes)
	}
	checkSound(t, s)
}

// TestIndexFollowsBytes: a capacity that the bytes do not allow costs no memory.
func TestIndexFollowsBytes(t *testing.T) {
	if n := len(New(Config{Success: 1e6, Denial: 1e6, Bytes: 1 << 20}).buckets); n > 1<<15 {
		t.Errorf("%d buckets for 1 MiB", n)
	}
	if n := len(New(Config{Success: 1000, Denial: 1000}).buckets); n < 2000 {
		t.Errorf("%d buckets for 2000 answers", n)
	}
}

func TestEntrySize(t *testing.T) {
	if size := unsafe.Sizeof(Entry{}); size > entrySize || size < entrySize-16 {
		t.Errorf("an entry has %d octets, counted are %d", size, entrySize)
	}
}

func TestOneEntryAQuestion(t *testing.T) {
	s := New(Config{Success: 10, Denial: 10})
	first := put(t, s, "a.test", Success)
	second := put(t, s, "a.test", Denial)
	if get(s, "a.test") != second || s.Len(Success) != 0 || s.Len(Denial) != 1 {
		t.Errorf("success %d, denial %d", s.Len(Success), s.Len(Denial))
	}
	a := answerTo(t, question("a.test", 1), 0, 2)
	if kept := s.Put(a, Success, s.Now(), time.Minute, func(old *Entry) bool { return old == second }); kept != second || get(s, "a.test") != second {
		t.Error("what was to be kept was replaced")
	}
	third := s.Put(answerTo(t, question("a.test", 1), 0, 2), Denial, s.Now(), time.Minute, func(old *Entry) bool { return false })
	if get(s, "a.test") != third || s.Len(Denial) != 1 {
		t.Error("not replaced")
	}
	s.Remove(&first.Answer)
	if get(s, "a.test") != nil || s.Len(Denial) != 0 || s.bytes != 0 {
		t.Errorf("removed, %d bytes left", s.bytes)
	}
	s.Remove(&first.Answer)
	checkSound(t, s)
}

func TestUseCountsWithinGap(t *testing.T) {
	e := &Entry{}
	for i, want := range []uint32{1, 2, 3, 3, 3} {
		if n := e.Use(time.Duration(i)*time.Second, time.Minute, 3); n != want {
			t.Errorf("use %d: %d, want %d", i, n, want)
		}
	}
	if n := e.Use(65*time.Second, time.Minute, 3); n != 1 {
		t.Errorf("after a gap: %d", n)
	}
}

func TestOneRefreshAtATime(t *testing.T) {
	e := &Entry{}
	if !e.BeginRefresh(0) || e.BeginRefresh(time.Hour) || !e.Resting(time.Hour) {
		t.Error("two refreshes at a time")
	}
	e.EndRefresh(10 * time.Second)
	if e.BeginRefresh(9*time.Second) || !e.Resting(9*time.Second) || !e.BeginRefresh(10*time.Second) {
		t.Error("pause not kept")
	}
}

// TestReadersNeverMissWhatIsThere: readers among writers always find the entries that
// no one removes.
func TestReadersNeverMissWhatIsThere(t *testing.T) {
	s := New(Config{Success: 64, Denial: 64})
	s.buckets, s.mask = s.buckets[:4], 3 // long chains
	for i := range 16 {
		put(t, s, fmt.Sprintf("stay%d.test", i), Denial)
	}
	done := make(chan struct{})
	var writers, readers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 2000 {
				put(t, s, fmt.Sprintf("w%d-%d.test", w, i), Success)
				put(t, s, fmt.Sprintf("stay%d.test", i%16), Denial)
			}
		})
	}
	for range 4 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				if get(s, fmt.Sprintf("stay%d.test", i%16)) == nil {
					t.Errorf("stay%d is missing", i%16)
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	checkSound(t, s)
}

// TestMemoryOfAFullCache: both kinds of the default capacity, filled with what clusters
// hold, take less than 7 MiB, so that even four such zones leave room in 32 MiB.
func TestMemoryOfAFullCache(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	s := New(Config{})
	for i := range DefaultCapacity {
		put(t, s, fmt.Sprintf("web-%d.some-namespace.svc.cluster.local", i), Success)
		put(t, s, fmt.Sprintf("www.example%d.com.some-namespace.svc.cluster.local", i), Denial)
	}
	used := heap() - before
	t.Logf("%d entries take %d KiB, %d octets each", s.Len(Success)+s.Len(Denial), used>>10, used/(2*DefaultCapacity))
	if used > 7<<20 {
		t.Errorf("%d KiB", used>>10)
	}
	runtime.KeepAlive(s)
}

// TestEntryIsOnePiece: the sizes in NewEntry leave nothing unused.
func TestEntryIsOnePiece(t *testing.T) {
	if off := unsafe.Offsetof(Entry{}.visited); off != 64 {
		t.Errorf("a look-up reads %d octets", off)
	}
	if size := unsafe.Sizeof(Entry{}); size != 104 {
		t.Errorf("an entry has %d octets", size)
	}
	for n := range 600 {
		e, room := NewEntry(n)
		if e == nil || len(room) < n {
			t.Fatalf("%d octets: %d", n, len(room))
		}
		if allocs := testing.AllocsPerRun(10, func() { sink, _ = NewEntry(n) }); allocs > 2 || n <= 472 && allocs > 1 {
			t.Fatalf("%d octets: %v allocations", n, allocs)
		}
	}
}

var sink *Entry

func TestValidate(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []Config{{Success: -1}, {Denial: -1}, {Bytes: -1}, {Stale: -1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v passes", bad)
		}
	}
}

// checkSound compares index, queues and counts.
func checkSound(t *testing.T, s *Store) {
	t.Helper()
	indexed := make(map[*Entry]bool)
	for i := range s.buckets {
		for e := s.buckets[i].Load(); e != nil; e = e.chain.Load() {
			indexed[e] = true
		}
	}
	var size int64
	total := 0
	for k := range kinds {
		n := 0
		var last *Entry
		for e := s.queues[k].oldest; e != nil; e = e.newer {
			if !indexed[e] || e.kind != k || e.older != last {
				t.Fatalf("%s queue is broken at entry %d", k, n)
			}
			size += e.cost()
			last = e
			n++
		}
		if s.queues[k].newest != last || n != s.Len(k) {
			t.Errorf("%s: %d in the queue, %d counted", k, n, s.Len(k))
		}
		total += n
	}
	if total != len(indexed) || size != s.bytes {
		t.Errorf("%d queued, %d indexed; %d bytes, %d counted", total, len(indexed), size, s.bytes)
	}
}
