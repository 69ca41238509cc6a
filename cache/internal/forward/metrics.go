package forward

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// proxyName is the value of CoreDNS's label proxy_name, which tells this
// directive from others that share its metrics.
const proxyName = "forward"

// Metrics counts what the upstreams do, for all Forwards together, under the
// names that CoreDNS gave these figures.
type Metrics struct {
	duration     *prometheus.HistogramVec
	healthFails  *prometheus.CounterVec
	connHits     *prometheus.CounterVec
	connMisses   *prometheus.CounterVec
	healthBroken prometheus.Counter
	rejects      prometheus.Counter
	ignored      *prometheus.CounterVec
	loops        *prometheus.CounterVec
	upstreams    *prometheus.GaugeVec
	resolvErrors prometheus.Counter
}

// NewMetrics builds the metrics and registers them with reg; with a nil reg they
// are counted but shown nowhere. It panics if they are registered already.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counterVec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "coredns_proxy_request_duration_seconds",
			Help:    "Time from query to reply, by upstream and response code.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16),
		}, []string{"proxy_name", "to", "rcode"}),
		healthFails:  counterVec("coredns_proxy_healthcheck_failures_total", "Health checks without a reply, by upstream.", "proxy_name", "to"),
		connHits:     counterVec("coredns_proxy_conn_cache_hits_total", "Queries sent over a connection or socket that was open already.", "proxy_name", "to", "proto"),
		connMisses:   counterVec("coredns_proxy_conn_cache_misses_total", "Queries that opened a connection or socket.", "proxy_name", "to", "proto"),
		healthBroken: counter("coredns_forward_healthcheck_broken_total", "Queries that found every upstream down."),
		rejects:      counter("coredns_forward_max_concurrent_rejects_total", "Queries turned away because max_concurrent were under way."),
		ignored:      counterVec("nodedns_forward_ignored_replies_total", "Packets from an upstream that answer nothing that was asked, by upstream.", "to"),
		loops:        counterVec("nodedns_forward_loop_probes_returned_total", "Loop probes that came back to this process, by the upstream they were sent to.", "to"),
		upstreams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodedns_forward_resolv_conf_servers",
			Help: "Nameservers taken from a resolv.conf file.",
		}, []string{"file"}),
		resolvErrors: counter("nodedns_forward_resolv_conf_errors_total", "Times a resolv.conf file could not be read or named no usable server."),
	}
	if reg != nil {
		reg.MustRegister(m.duration, m.healthFails, m.connHits, m.connMisses, m.healthBroken,
			m.rejects, m.ignored, m.loops, m.upstreams, m.resolvErrors)
	}
	return m
}

// targetMetrics are the metrics of one upstream with their labels looked up once, so that
// a query does not have to.
type targetMetrics struct {
	duration    [16]atomic.Pointer[prometheus.Observer] // by response code, when first seen
	forRcode    func(rcode byte) prometheus.Observer
	healthFails prometheus.Counter
	ignored     prometheus.Counter
	loop        prometheus.Counter
	udp, stream connMetrics
}

type connMetrics struct{ hits, misses prometheus.Counter }

func (m *Metrics) target(t Target) *targetMetrics {
	to := t.String()
	proto := "tcp"
	if t.TLS {
		proto = "tcp-tls"
	}
	conn := func(proto string) connMetrics {
		return connMetrics{
			hits:   m.connHits.WithLabelValues(proxyName, to, proto),
			misses: m.connMisses.WithLabelValues(proxyName, to, proto),
		}
	}
	return &targetMetrics{
		forRcode: func(rcode byte) prometheus.Observer {
			return m.duration.WithLabelValues(proxyName, to, wire.Rcode(rcode).String())
		},
		healthFails: m.healthFails.WithLabelValues(proxyName, to),
		ignored:     m.ignored.WithLabelValues(to),
		loop:        m.loops.WithLabelValues(to),
		udp:         conn("udp"),
		stream:      conn(proto),
	}
}
