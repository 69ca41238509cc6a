package resolve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// BenchmarkHit measures the engine alone: packet in, packet out.
func BenchmarkHit(b *testing.B) {
	for _, c := range []struct {
		name string
		edns bool
	}{{"plain", false}, {"edns", true}} {
		b.Run(c.name, func(b *testing.B) {
			r := benchRouter(b, 1)
			q := packedQuery(benchName(0), dns.TypeA, c.edns, false)
			benchHit(b, r, [][]byte{q})
		})
	}
}

// BenchmarkHitEntries shows what the number of entries costs. Names are asked in an
// order that no prefetcher guesses; the packet is one, so that only the engine's own
// memory counts.
func BenchmarkHitEntries(b *testing.B) {
	for _, n := range []int{1e3, 1e4, 1e5, 1e6} {
		b.Run(fmt.Sprintf("%.0e", float64(n)), func(b *testing.B) {
			r := benchRouter(b, n)
			from := wire.Origin{Client: netip.MustParseAddrPort("10.0.0.1:4000")}
			q, buf := packedQuery(benchName(0), dns.TypeA, false, false), make([]byte, 4096)
			digits := q[17:24]
			b.ReportAllocs()
			defer cpuTime(b)()
			i := 0
			for b.Loop() {
				i = (i + 7919) % n
				for k, v := 6, i; k >= 0; k, v = k-1, v/10 {
					digits[k] = byte('0' + v%10)
				}
				if _, ok := r.Hit(buf, q, from); !ok {
					b.Fatal("miss")
				}
			}
		})
	}
}

// BenchmarkHitZipf asks for names as clients do: some often, most rarely.
func BenchmarkHitZipf(b *testing.B) {
	for _, n := range []int{1e3, 1e4, 1e5, 1e6} {
		b.Run(fmt.Sprintf("%.0e", float64(n)), func(b *testing.B) {
			r := benchRouter(b, n)
			from := wire.Origin{Client: netip.MustParseAddrPort("10.0.0.1:4000")}
			q, buf := packedQuery(benchName(0), dns.TypeA, false, false), make([]byte, 4096)
			zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(n-1))
			order := make([]uint32, 1<<16)
			for i := range order {
				order[i] = uint32(zipf.Uint64())
			}
			digits := q[17:24]
			b.ReportAllocs()
			defer cpuTime(b)()
			i := 0
			for b.Loop() {
				for k, v := 6, order[i&(1<<16-1)]; k >= 0; k, v = k-1, v/10 {
					digits[k] = byte('0' + v%10)
				}
				i++
				if _, ok := r.Hit(buf, q, from); !ok {
					b.Fatal("miss")
				}
			}
		})
	}
}

// cpuTime reports the processor time of an operation, which other load on the machine
// does not stretch as it does the time on the clock.
func cpuTime(b *testing.B) (stop func()) {
	b.Helper()
	runtime.LockOSThread()
	now := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			b.Fatal(err)
		}
		return ts.Nano()
	}
	start := now()
	return func() {
		b.ReportMetric(float64(now()-start)/float64(b.N), "cpu-ns/op")
		runtime.UnlockOSThread()
	}
}

// BenchmarkHitParallel has one lane for each core, as the server has.
func BenchmarkHitParallel(b *testing.B) {
	r := benchRouter(b, 1000)
	var queries [][]byte
	for i := range 1000 {
		queries = append(queries, packedQuery(benchName(i), dns.TypeA, false, false))
	}
	lane := make(chan uint8, 64)
	for i := range 64 {
		lane <- uint8(i)
	}
	b.RunParallel(func(pb *testing.PB) {
		from := wire.Origin{Client: netip.MustParseAddrPort("10.0.0.1:4000"), Lane: <-lane}
		buf := make([]byte, 4096)
		for i := 0; pb.Next(); i++ {
			if _, ok := r.Hit(buf, queries[i%len(queries)], from); !ok {
				b.Error("miss")
				return
			}
		}
	})
}

// BenchmarkMiss measures a question that goes upstream and is stored.
func BenchmarkMiss(b *testing.B) {
	r := benchRouter(b, 0)
	from := wire.Origin{Client: netip.MustParseAddrPort("10.0.0.1:4000")}
	buf := make([]byte, 4096)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		b.StopTimer()
		q := packedQuery(benchName(i), dns.TypeA, true, false)
		i++
		b.StartTimer()
		if _, ok := r.Hit(buf, q, from); ok {
			b.Fatal("hit")
		}
		r.Resolve(b.Context(), buf, q, from)
	}
}

func benchHit(b *testing.B, r *Router, queries [][]byte) {
	b.Helper()
	from := wire.Origin{Client: netip.MustParseAddrPort("10.0.0.1:4000")}
	buf := make([]byte, 4096)
	b.ReportAllocs()
	defer cpuTime(b)()
	i := 0
	for b.Loop() {
		if _, ok := r.Hit(buf, queries[i], from); !ok {
			b.Fatal("miss")
		}
		if i++; i == len(queries) {
			i = 0
		}
	}
}

func benchName(i int) string { return fmt.Sprintf("name%07d.example.test.", i) }

func benchRouter(b *testing.B, entries int) *Router {
	b.Helper()
	s := store.New(store.Config{Success: max(entries, 10000)})
	z, err := NewZone(ZoneConfig{
		Names:  []string{"."},
		Store:  s,
		Routes: []Route{{From: ".", Upstream: benchUpstream{}}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(z.Close)
	r := NewRouter(RouterConfig{Server: "dns://10.0.0.10:53", Zones: []*Zone{z}, Metrics: NewMetrics(prometheus.NewRegistry())})
	buf := make([]byte, 4096)
	for i := range entries {
		r.Resolve(b.Context(), buf, packedQuery(benchName(i), dns.TypeA, false, false), wire.Origin{})
	}
	return r
}

// benchUpstream answers everything with one address.
type benchUpstream struct{}

func (benchUpstream) Exchange(_ context.Context, query []byte) ([]byte, error) {
	n := len(query) - 11 // the OPT record
	reply := make([]byte, 0, len(query)+16)
	reply = append(reply, query[:n]...)
	reply[2], reply[3] = 0x81, 0x80
	reply[7], reply[11] = 1, 1
	reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4, 192, 0, 2, 1)
	return append(reply, query[n:]...), nil
}

func packedQuery(name string, qtype uint16, edns, do bool) []byte {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	if edns {
		m.SetEdns0(1232, do)
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}
