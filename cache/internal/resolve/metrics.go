package resolve

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics holds what all routers of the process count, under CoreDNS's names. It lives
// as long as the process, so that counters go on over a reload. Nothing is looked up by
// label while queries are answered: the counters are plain numbers that are put under
// their names when somebody asks for them.
type Metrics struct {
	mu    sync.Mutex
	sites map[siteKey]*counters
	zones map[siteKey]*zoneCounts

	descs descs
}

type siteKey struct{ server, zone string }

// NewMetrics returns metrics that are registered with reg, unless that is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		sites: make(map[siteKey]*counters),
		zones: make(map[siteKey]*zoneCounts),
		descs: newDescs(),
	}
	if reg != nil {
		reg.MustRegister(m)
	}
	return m
}

// site returns the counters of a zone on a server.
func (m *Metrics) site(server, zone string) *counters {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := siteKey{server, zone}
	c := m.sites[key]
	if c == nil {
		c = &counters{}
		m.sites[key] = c
	}
	return c
}

// zone returns what a zone counts by itself, going on where an older zone of the name left
// off. A zone that several servers share is counted on the first of them.
func (m *Metrics) zone(server, zone string) *zoneCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := siteKey{server, zone}
	c := m.zones[key]
	if c == nil {
		c = &zoneCounts{}
		m.zones[key] = c
	}
	return c
}

// retire stops the gauges of a zone that is served no more, unless they are another's.
func (c *zoneCounts) retire(z *Zone) { c.zone.CompareAndSwap(z, nil) }
