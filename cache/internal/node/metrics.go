package node

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the node room's figures. The label values are closed sets: the steps and repair kinds of this package and
// the names of the levels.
type Metrics struct {
	inService  *clock
	backstop   *clock
	renewals   prometheus.Counter
	unproved   prometheus.Counter
	repairs    *prometheus.CounterVec
	failures   *prometheus.CounterVec
	problems   *prometheus.GaugeVec
	lockWaits  prometheus.Counter
	guard      *prometheus.GaugeVec
	mode       *prometheus.GaugeVec
	checkTimes prometheus.Histogram
}

// NewMetrics registers the metrics with reg; with nil they go nowhere.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{inService: &clock{}, backstop: &clock{}}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "nodedns", Subsystem: "node", Name: name, Help: help})
	}
	m.renewals = counter("lease_renewals_total", "Lease renewals that reached the kernel.")
	m.unproved = counter("lease_unproved_total", "Times the lease was not renewed because the cache did not prove that it answers.")
	m.lockWaits = counter("xtables_lock_waits_total", "iptables calls that gave up waiting for the xtables lock and were tried again.")
	m.repairs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "nodedns", Subsystem: "node", Name: "repairs_total",
		Help: "Parts of the node that had to be put back, by kind.",
	}, []string{"kind"})
	m.failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "nodedns", Subsystem: "node", Name: "step_failures_total",
		Help: "Steps of setting up the node that failed, by step.",
	}, []string{"step"})
	m.problems = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "nodedns", Subsystem: "node", Name: "problem",
		Help: "1 while a step of setting up the node does not succeed.",
	}, []string{"step"})
	m.guard = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "nodedns", Subsystem: "node", Name: "guard_level",
		Help: "1 for the guard level in force: owner, socket, lease or plain.",
	}, []string{"level"})
	m.mode = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "nodedns", Subsystem: "node", Name: "proxy_mode",
		Help: "1 for the kube-proxy mode the node is set up for.",
	}, []string{"mode"})
	m.checkTimes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "nodedns", Subsystem: "node", Name: "check_cpu_seconds",
		Help:    "CPU time of one full check of link and rules, commands included.",
		Buckets: []float64{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3},
	})
	if reg == nil {
		return m
	}
	reg.MustRegister(m.renewals, m.unproved, m.lockWaits, m.repairs, m.failures, m.problems, m.guard, m.mode, m.checkTimes,
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "nodedns", Subsystem: "node", Name: "in_service_seconds_total",
			Help: "Seconds in which the rules steered clients to this cache.",
		}, m.inService.seconds),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "nodedns", Subsystem: "node", Name: "backstop_seconds_total",
			Help: "Seconds in which this process ran and cluster DNS answered in its place.",
		}, m.backstop.seconds))
	return m
}

// serving switches the two clocks: one of them runs at a time.
func (m *Metrics) serving(yes bool) {
	m.inService.run(yes)
	m.backstop.run(!yes)
}

// clock adds up the time during which it runs. Safe for concurrent use; one goroutine switches it.
type clock struct {
	total atomic.Int64 // ns, of the stretches that have ended
	since atomic.Int64 // ns since the epoch of this process, 0 while stopped
	epoch atomic.Pointer[time.Time]
}

func (c *clock) now() int64 {
	t := time.Now()
	c.epoch.CompareAndSwap(nil, &t)
	return int64(t.Sub(*c.epoch.Load())) + 1
}

func (c *clock) run(yes bool) {
	now := c.now()
	switch since := c.since.Load(); {
	case yes && since == 0:
		c.since.Store(now)
	case !yes && since != 0:
		c.since.Store(0)
		c.total.Add(now - since)
	}
}

func (c *clock) seconds() float64 {
	ns := c.total.Load()
	if since := c.since.Load(); since != 0 {
		ns += c.now() - since
	}
	return time.Duration(ns).Seconds()
}
