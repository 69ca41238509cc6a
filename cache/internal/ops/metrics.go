package ops

import (
	"runtime"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Build identifies the binary.
type Build struct{ Version, Revision string }

// SetupError is a value of the label errortype of coredns_nodecache_setup_errors_total. The incumbent's names are kept.
type SetupError string

// SetupErrors are counts of errors by kind; one that is missing is 0.
type SetupErrors map[SetupError]float64

// The setup errors.
const (
	SetupConfigMap SetupError = "configmap"       // a file of the configuration that cannot be used
	SetupLinkAdd   SetupError = "interface_add"   // link, address or route cannot be set up
	SetupLinkCheck SetupError = "interface_check" // link, address or route cannot be looked at
	SetupRules     SetupError = "iptables"        // rules cannot be set up
	SetupRulesLock SetupError = "iptables_lock"   // another program holds the xtables lock
)

func setupErrors() []SetupError {
	return []SetupError{SetupConfigMap, SetupLinkAdd, SetupLinkCheck, SetupRules, SetupRulesLock}
}

// ProcessMetrics are the figures about the process as a whole.
type ProcessMetrics struct {
	reloadFailed prometheus.Counter
	reloadInfo   *prometheus.GaugeVec
	reloads      prometheus.Counter
	logDropped   prometheus.Counter
	configMap    atomic.Uint64
	setup        *setupCollector
	endpointUp   *prometheus.GaugeVec
}

// NewMetrics builds the metrics and registers them, with those of Go and the process, with reg; nil counts nowhere. node gives
// the errors that the set-up of the node has met so far; nil: no node is set up.
func NewMetrics(reg prometheus.Registerer, build Build, node func() SetupErrors) *ProcessMetrics {
	m := &ProcessMetrics{
		reloadFailed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "coredns_reload_failed_total", Help: "Changes of the configuration that could not be loaded; the old one stayed in force.",
		}),
		reloads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodedns_reload_total", Help: "Changes of the configuration that were loaded.",
		}),
		logDropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodedns_log_lines_dropped_total", Help: "Lines of log left out because nobody took the output of the process.",
		}),
		reloadInfo: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "coredns_reload_version_info", Help: "A constant 1, labelled with the hash of the configuration in force.",
		}, []string{"hash", "value"}),
		endpointUp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodedns_web_server_listeners", Help: "Addresses on which the web server of this kind listens; 0 while its address is taken.",
		}, []string{"kind"}),
	}
	m.setup = &setupCollector{m: m, node: node, desc: prometheus.NewDesc("coredns_nodecache_setup_errors_total",
		"Errors in the set-up of the node or its configuration, by kind.", []string{"errortype"}, nil)}
	if reg == nil {
		return m
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "coredns_build_info", Help: "A constant 1, labelled with version, revision and Go version of the binary.",
		ConstLabels: prometheus.Labels{"version": "nodedns-" + build.Version, "revision": build.Revision, "goversion": runtime.Version()},
	})
	info.Set(1)
	reg.MustRegister(m.reloadFailed, m.reloads, m.logDropped, m.reloadInfo, m.setup, m.endpointUp, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// ConfigMapFailed counts a file of the configuration that cannot be used.
func (m *ProcessMetrics) ConfigMapFailed() { m.configMap.Add(1) }

// SetupErrors collects the set-up errors alone, as the incumbent serves them on a port of their own.
func (m *ProcessMetrics) SetupErrors() prometheus.Collector { return m.setup }

// setupCollector brings together what different rooms have counted.
type setupCollector struct {
	m    *ProcessMetrics
	node func() SetupErrors
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *setupCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *setupCollector) Collect(ch chan<- prometheus.Metric) {
	var counts SetupErrors
	if c.node != nil {
		counts = c.node()
	}
	for _, kind := range setupErrors() {
		n := counts[kind]
		if kind == SetupConfigMap {
			n += float64(c.m.configMap.Load())
		}
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, n, string(kind))
	}
}

// Loaded notes the configuration in force by its hash; reload says that it replaced another.
func (m *ProcessMetrics) Loaded(hash string, reload bool) {
	m.reloadInfo.Reset()
	m.reloadInfo.WithLabelValues("sha256", hash).Set(1)
	if reload {
		m.reloads.Inc()
	}
}

// ReloadFailed counts a configuration that could not be loaded.
func (m *ProcessMetrics) ReloadFailed() { m.reloadFailed.Inc() }

// LogDropped counts a line of log that was left out.
func (m *ProcessMetrics) LogDropped() { m.logDropped.Inc() }

// endpoints sets the gauges of the kinds that are served somewhere, and drops the others.
func (m *ProcessMetrics) endpoints(kinds map[string][]Kind, failed map[string]error) {
	m.endpointUp.Reset()
	for addr, ks := range kinds {
		for _, k := range ks {
			if g := m.endpointUp.WithLabelValues(string(k)); failed[addr] == nil {
				g.Add(1)
			}
		}
	}
}
