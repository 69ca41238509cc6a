package resolve

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
	"github.com/nodedns/nodedns/e2e/house"
)

// metricsAfter asks some questions and returns the registry.
func metricsAfter(t *testing.T) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics := NewMetrics(reg)
	up := newScriptUpstream()
	up.set(t, []string{"a.test.", "A"}, []string{"answer a.test. 5 IN A 192.0.2.1"})
	up.set(t, []string{"gone.test.", "AAAA"}, []string{"rcode NXDOMAIN", "authority test. 60 IN SOA ns. h. 1 2 3 4 60"})
	up.set(t, []string{"bad.test.", "A"}, []string{"error connection refused"})
	z := newTestZone(t, func(c *ZoneConfig) { c.Names, c.Cache.Stale.For = []string{"test"}, time.Hour }, up)
	r := NewRouter(RouterConfig{Server: "dns://10.0.0.10:53", Zones: []*Zone{z}, Metrics: metrics})
	r.Attach()
	do := func(name string, qtype uint16, transport wire.Transport, edns, dnssec bool) {
		ask(t, r, packedQuery(name, qtype, edns, dnssec), client(transport))
	}
	do("a.test.", dns.TypeA, wire.UDP, false, false)
	for range 3 {
		do("a.test.", dns.TypeA, wire.UDP, true, false)
	}
	do("gone.test.", dns.TypeAAAA, wire.TCP, false, false)
	do("gone.test.", dns.TypeAAAA, wire.TCP, false, false)
	do("gone.test.", dns.TypeAAAA, wire.TCP, true, true)
	do("bad.test.", dns.TypeA, wire.UDP, false, false)
	do("a.test.", 65280, wire.UDP, false, false)
	do("elsewhere.", dns.TypeA, wire.UDP, false, false)
	time.Sleep(10 * time.Second)
	up.set(t, []string{"a.test.", "A"}, []string{"error connection refused"})
	do("a.test.", dns.TypeA, wire.UDP, false, false) // stale
	synctest.Wait()
	return reg
}

func TestMetricsHaveCoreDNSNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := metricsAfter(t)
		want := `
# HELP coredns_cache_entries Answers in the cache.
# TYPE coredns_cache_entries gauge
coredns_cache_entries{server="dns://10.0.0.10:53",type="denial",view="",zones="test."} 4
coredns_cache_entries{server="dns://10.0.0.10:53",type="success",view="",zones="test."} 1
# HELP coredns_cache_hits_total Replies from the cache, stale ones included.
# TYPE coredns_cache_hits_total counter
coredns_cache_hits_total{server="dns://10.0.0.10:53",type="denial",view="",zones="test."} 1
coredns_cache_hits_total{server="dns://10.0.0.10:53",type="success",view="",zones="test."} 4
# HELP coredns_cache_misses_total Queries that the cache could not answer.
# TYPE coredns_cache_misses_total counter
coredns_cache_misses_total{server="dns://10.0.0.10:53",view="",zones="test."} 5
# HELP coredns_cache_requests_total Queries that the cache was asked for.
# TYPE coredns_cache_requests_total counter
coredns_cache_requests_total{server="dns://10.0.0.10:53",view="",zones="test."} 10
# HELP coredns_cache_served_stale_total Replies from answers that had ended.
# TYPE coredns_cache_served_stale_total counter
coredns_cache_served_stale_total{server="dns://10.0.0.10:53",view="",zones="test."} 1
# HELP coredns_dns_do_requests_total Queries with the DO bit.
# TYPE coredns_dns_do_requests_total counter
coredns_dns_do_requests_total{server="dns://10.0.0.10:53",view="",zone="dropped"} 0
coredns_dns_do_requests_total{server="dns://10.0.0.10:53",view="",zone="test."} 1
# HELP coredns_dns_requests_total Queries by zone, transport, address family and type.
# TYPE coredns_dns_requests_total counter
coredns_dns_requests_total{family="1",proto="tcp",server="dns://10.0.0.10:53",type="AAAA",view="",zone="test."} 3
coredns_dns_requests_total{family="1",proto="udp",server="dns://10.0.0.10:53",type="A",view="",zone="dropped"} 1
coredns_dns_requests_total{family="1",proto="udp",server="dns://10.0.0.10:53",type="A",view="",zone="test."} 6
coredns_dns_requests_total{family="1",proto="udp",server="dns://10.0.0.10:53",type="other",view="",zone="test."} 1
# HELP coredns_dns_responses_total Replies by zone, response code and where they come from.
# TYPE coredns_dns_responses_total counter
coredns_dns_responses_total{plugin="",rcode="REFUSED",server="dns://10.0.0.10:53",view="",zone="dropped"} 1
coredns_dns_responses_total{plugin="",rcode="SERVFAIL",server="dns://10.0.0.10:53",view="",zone="test."} 1
coredns_dns_responses_total{plugin="cache",rcode="NOERROR",server="dns://10.0.0.10:53",view="",zone="test."} 4
coredns_dns_responses_total{plugin="cache",rcode="NXDOMAIN",server="dns://10.0.0.10:53",view="",zone="test."} 1
coredns_dns_responses_total{plugin="forward",rcode="NOERROR",server="dns://10.0.0.10:53",view="",zone="test."} 1
coredns_dns_responses_total{plugin="forward",rcode="NXDOMAIN",server="dns://10.0.0.10:53",view="",zone="test."} 3
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "coredns_cache_entries", "coredns_cache_hits_total",
			"coredns_cache_misses_total", "coredns_cache_requests_total", "coredns_cache_served_stale_total",
			"coredns_dns_requests_total", "coredns_dns_responses_total", "coredns_dns_do_requests_total"); err != nil {
			t.Error(err)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "coredns_dns_request_duration_seconds" {
				for _, m := range f.GetMetric() {
					if zone := m.GetLabel()[2].GetValue(); zone == "test." && m.GetHistogram().GetSampleCount() != 10 {
						t.Errorf("%d requests in the histogram of %s", m.GetHistogram().GetSampleCount(), zone)
					}
				}
			}
		}
	})
}

func TestMetricsLint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		families, err := metricsAfter(t).Gather()
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}

// TestCountersGoOnOverAReload: a new router for the same zone goes on counting, and the
// gauges are those of the store in use.
func TestCountersGoOnOverAReload(t *testing.T) {
	reg := prometheus.NewRegistry()
	metrics := NewMetrics(reg)
	up := answers(t, "a.test. 60 IN A 192.0.2.1")
	run := func(s *store.Store) *Router {
		z := newTestZone(t, func(c *ZoneConfig) { c.Names, c.Store = []string{"test"}, s }, up)
		r := NewRouter(RouterConfig{Server: "dns://:53", Zones: []*Zone{z}, Metrics: metrics})
		r.Attach()
		ask(t, r, packedQuery("a.test.", dns.TypeA, false, false), client(wire.UDP))
		return r
	}
	shared := store.New(store.Config{})
	first := run(shared)
	run(shared) // a hit
	first.Close()
	value := func(name string) float64 { return house.Value(t, reg, name) }
	if v := value("coredns_cache_entries"); v != 1 {
		t.Errorf("entries %v in the store that both zones use", v)
	}
	if v := value("coredns_cache_requests_total"); v != 2 {
		t.Errorf("requests %v", v)
	}
	if v := value("coredns_cache_hits_total"); v != 1 {
		t.Errorf("hits %v", v)
	}
	// One that never comes into use is not seen, neither while it is there nor after.
	unused := NewRouter(RouterConfig{Server: "dns://:53", Metrics: metrics,
		Zones: []*Zone{newTestZone(t, func(c *ZoneConfig) { c.Names = []string{"test"} }, up)}})
	for _, when := range []string{"prepared", "discarded"} {
		if v := value("coredns_cache_entries"); v != 1 {
			t.Errorf("entries %v when another router is %s", v, when)
		}
		unused.Close()
	}
	third := run(store.New(store.Config{}))
	third.Close()
	if v := value("coredns_cache_entries"); v != 0 {
		t.Errorf("entries %v after the zone went", v)
	}
}

func TestSizeSlots(t *testing.T) {
	limits := sizeLimits()
	for i, limit := range limits {
		if sizeSlot(limit) != i || sizeSlot(limit+1) != i+1 {
			t.Errorf("limit %d: slots %d and %d", limit, sizeSlot(limit), sizeSlot(limit+1))
		}
	}
}

func TestTypeLabels(t *testing.T) {
	for slot := range otherType + 1 {
		label := typeLabel(slot)
		if slot == otherType {
			if label != "other" {
				t.Errorf("slot %d: %s", slot, label)
			}
		} else if typeSlot(dns.StringToType[label]) != slot {
			t.Errorf("slot %d: %s", slot, label)
		}
	}
}

// TestEachReplyIsCountedOnce: with the query log, which leaves hits to Resolve, as without;
// and a cut for which upstream was asked is no hit.
func TestEachReplyIsCountedOnce(t *testing.T) {
	for _, logged := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			up := newScriptUpstream()
			up.set(t, []string{"*", "A"}, []string{"rcode NXDOMAIN", "authority cluster.local. 30 IN SOA ns. h. 1 2 3 4 30"})
			up.set(t, []string{"web.cluster.local.", "A"}, []string{"answer web.cluster.local. 30 IN A 192.0.2.1"})
			z := newTestZone(t, func(c *ZoneConfig) {
				c.Names, c.SearchCut = []string{"cluster.local"}, []string{"cluster.local"}
				c.Cache.Prefetch = PrefetchConfig{Amount: 2, Percent: 50}
				if logged {
					c.QueryLog = func(LogRecord) {}
				}
			}, up)
			r := NewRouter(RouterConfig{Server: "dns://:53", Zones: []*Zone{z}, Metrics: NewMetrics(reg)})
			r.Attach()
			for range 20 {
				ask(t, r, packedQuery("web.cluster.local.", dns.TypeA, false, false), client(wire.UDP))
				time.Sleep(time.Second)
			}
			synctest.Wait()
			ask(t, r, packedQuery("www.com.cluster.local.", dns.TypeA, false, false), client(wire.UDP))
			ask(t, r, packedQuery("ftp.com.cluster.local.", dns.TypeA, false, false), client(wire.UDP))
			for name, want := range map[string]float64{
				"coredns_dns_requests_total": 22, "coredns_dns_request_duration_seconds": 22, "coredns_cache_requests_total": 22,
				"coredns_cache_misses_total": 2, "coredns_cache_hits_total": 20, "coredns_cache_prefetch_total": 1, "nodedns_search_cut_total": 2,
			} {
				if got := house.Value(t, reg, name); got != want {
					t.Errorf("logged %v: %s is %v, want %v", logged, name, got, want)
				}
			}
		})
	}
}
