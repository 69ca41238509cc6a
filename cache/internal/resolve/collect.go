package resolve

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// descs are the metrics of this package. The label view is always empty here; CoreDNS
// has it, and so do dashboards made for it.
type descs struct {
	requests, responses, doRequests, took, asked, replied                   *prometheus.Desc
	entries, hits, misses, cacheRequests, stale, prefetch, drops, evictions *prometheus.Desc
	cuts, busy, panics                                                      *prometheus.Desc
}

func newDescs() descs {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return descs{
		requests: d("coredns_dns_requests_total", "Queries by zone, transport, address family and type.",
			"server", "zone", "view", "proto", "family", "type"),
		responses: d("coredns_dns_responses_total", "Replies by zone, response code and where they come from.",
			"server", "zone", "view", "rcode", "plugin"),
		doRequests: d("coredns_dns_do_requests_total", "Queries with the DO bit.", "server", "zone", "view"),
		took: d("coredns_dns_request_duration_seconds", "Time to the reply. Hits are not timed and count as zero.",
			"server", "zone", "view"),
		asked:   d("coredns_dns_request_size_bytes", "Size of queries.", "server", "zone", "view", "proto"),
		replied: d("coredns_dns_response_size_bytes", "Size of replies.", "server", "zone", "view", "proto"),
		entries: d("coredns_cache_entries", "Answers in the cache.", "server", "type", "zones", "view"),
		hits: d("coredns_cache_hits_total", "Replies from the cache, stale ones included.",
			"server", "type", "zones", "view"),
		misses:        d("coredns_cache_misses_total", "Queries that the cache could not answer.", "server", "zones", "view"),
		cacheRequests: d("coredns_cache_requests_total", "Queries that the cache was asked for.", "server", "zones", "view"),
		stale:         d("coredns_cache_served_stale_total", "Replies from answers that had ended.", "server", "zones", "view"),
		prefetch:      d("coredns_cache_prefetch_total", "Answers renewed before their end.", "server", "zones", "view"),
		drops:         d("coredns_cache_drops_total", "Replies to another question than the one asked.", "server", "zones", "view"),
		evictions:     d("coredns_cache_evictions_total", "Answers that went for want of room.", "server", "type", "zones", "view"),
		cuts:          d("nodedns_search_cut_total", "Replies derived from a name above that does not exist.", "server", "zones"),
		busy:          d("nodedns_resolve_rejected_total", "Questions not asked because too many were under way.", "server", "zones"),
		panics:        d("nodedns_refresh_panics_total", "Renewals of answers that ended in a panic.", "server", "zones"),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	d := m.descs
	for _, desc := range []*prometheus.Desc{d.requests, d.responses, d.doRequests, d.took, d.asked, d.replied, d.entries,
		d.hits, d.misses, d.cacheRequests, d.stale, d.prefetch, d.drops, d.evictions, d.cuts, d.busy, d.panics} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, c := range m.sites {
		c.collect(ch, &m.descs, key)
	}
	for key, c := range m.zones {
		c.collect(ch, &m.descs, key)
	}
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v uint64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// collect sends what a site has counted.
func (c *counters) collect(ch chan<- prometheus.Metric, d *descs, key siteKey) {
	t := c.total()
	for proto := range protos {
		name := wire.Transport(proto).String()
		for family, byType := range t.requests[proto] {
			for slot, n := range byType {
				if n > 0 {
					counter(ch, d.requests, n, key.server, key.zone, "", name, []string{"1", "2"}[family], typeLabel(slot))
				}
			}
		}
		t.asked[proto].collect(ch, d.asked, key, name)
		t.replied[proto].collect(ch, d.replied, key, name)
	}
	var bySource [lateHits]uint64
	untimed := uint64(0)
	for how, byRcode := range t.responses {
		for _, n := range byRcode {
			bySource[source(how).prompt()] += n
			if source(how) >= hitSuccess && source(how) < lateHits {
				untimed += n
			}
		}
	}
	for label, byRcode := range t.byLabel() {
		for rcode, n := range byRcode {
			if n > 0 {
				counter(ch, d.responses, n, key.server, key.zone, "", wire.Rcode(rcode).String(), label)
			}
		}
	}
	counter(ch, d.doRequests, t.do, key.server, key.zone, "")
	c.collectDurations(ch, d, key, untimed)
	if !c.cached.Load() {
		return
	}
	found := bySource[hitSuccess] + bySource[hitDenial] + bySource[staleSuccess] + bySource[staleDenial]
	misses := bySource[bySelf] + bySource[byForward] + bySource[byLocal]
	counter(ch, d.hits, bySource[hitSuccess]+bySource[staleSuccess], key.server, store.Success.String(), key.zone, "")
	counter(ch, d.hits, bySource[hitDenial]+bySource[staleDenial], key.server, store.Denial.String(), key.zone, "")
	counter(ch, d.misses, misses, key.server, key.zone, "")
	counter(ch, d.cacheRequests, found+misses, key.server, key.zone, "")
	counter(ch, d.stale, bySource[staleSuccess]+bySource[staleDenial], key.server, key.zone, "")
}

func (c *counters) collectDurations(ch chan<- prometheus.Metric, d *descs, key siteKey, untimed uint64) {
	buckets := make(map[float64]uint64, timeSlots)
	n := untimed
	limit := firstTimeLimit
	for i := range c.durations {
		n += c.durations[i].Load()
		if i < timeSlots-1 {
			buckets[limit.Seconds()] = n
			limit *= 2
		}
	}
	sum := time.Duration(c.took.Load()).Seconds()
	ch <- prometheus.MustNewConstHistogram(d.took, n, sum, buckets, key.server, key.zone, "")
}

// totals are the sums over all lanes.
type totals struct {
	requests  [protos][families][otherType + 1]uint64
	responses [sources][rcodeSlots]uint64
	asked     [protos]sizeTotals
	replied   [protos]sizeTotals
	do        uint64
}

type sizeTotals struct {
	buckets [sizeSlots]uint64
	sum     uint64
}

func (c *counters) total() *totals {
	t := &totals{}
	for i := range c.lanes {
		l := c.lanes[i].Load()
		if l == nil {
			continue
		}
		for p := range protos {
			for f := range families {
				for slot := range l.requests[p][f] {
					t.requests[p][f][slot] += l.requests[p][f][slot].Load()
				}
			}
			t.asked[p].add(&l.asked[p])
			t.replied[p].add(&l.replied[p])
		}
		for how := range l.responses {
			for rcode := range l.responses[how] {
				t.responses[how][rcode] += l.responses[how][rcode].Load()
			}
		}
		t.do += l.do.Load()
	}
	return t
}

// byLabel sums the responses of the sources that share a label.
func (t *totals) byLabel() map[string][rcodeSlots]uint64 {
	out := make(map[string][rcodeSlots]uint64)
	for how, byRcode := range t.responses {
		sum := out[source(how).label()]
		for rcode, n := range byRcode {
			sum[rcode] += n
		}
		out[source(how).label()] = sum
	}
	return out
}

func (t *sizeTotals) add(s *sizes) {
	for size := range s.small {
		if n := s.small[size].Load(); n > 0 {
			t.buckets[sizeSlot(size)] += n
			t.sum += n * uint64(size)
		}
	}
	for i := range s.buckets {
		t.buckets[i] += s.buckets[i].Load()
	}
	t.sum += s.sum.Load()
}

func (t *sizeTotals) collect(ch chan<- prometheus.Metric, d *prometheus.Desc, key siteKey, proto string) {
	buckets := make(map[float64]uint64, sizeSlots)
	var n uint64
	limits := sizeLimits()
	for i, count := range t.buckets {
		n += count
		if i < len(limits) {
			buckets[float64(limits[i])] = n
		}
	}
	if n > 0 {
		ch <- prometheus.MustNewConstHistogram(d, n, float64(t.sum), buckets, key.server, key.zone, "", proto)
	}
}

// collect sends what a zone counts by itself.
func (c *zoneCounts) collect(ch chan<- prometheus.Metric, d *descs, key siteKey) {
	counter(ch, d.prefetch, c.prefetches.Load(), key.server, key.zone, "")
	counter(ch, d.drops, c.drops.Load(), key.server, key.zone, "")
	counter(ch, d.cuts, c.cuts.Load(), key.server, key.zone)
	counter(ch, d.busy, c.busy.Load(), key.server, key.zone)
	counter(ch, d.panics, c.panics.Load(), key.server, key.zone)
	z := c.zone.Load()
	if z == nil || z.store == nil {
		return
	}
	for _, k := range []store.Kind{store.Success, store.Denial} {
		ch <- prometheus.MustNewConstMetric(d.entries, prometheus.GaugeValue, float64(z.store.Len(k)), key.server, k.String(), key.zone, "")
		counter(ch, d.evictions, z.store.Evictions(k), key.server, k.String(), key.zone, "")
	}
}
