package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/nodedns/nodedns/certs"
)

// registerState registers what is read at the moment of a scrape. All but the registerer may be nil for a listing.
func registerState(registerer prometheus.Registerer, p *picture, source certs.Source, a *agreement) {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	registerer.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		gauge("nodedns_webhook_nodes", "Nodes that take ordinary Pods.",
			func() float64 { return float64(p.tracker.Summary().Nodes) }),
		gauge("nodedns_webhook_usable_nodes", "Nodes that take ordinary Pods and have a usable cache.",
			func() float64 { return float64(p.tracker.Summary().Usable) }),
		gauge("nodedns_webhook_breaker_open", "1 while too few caches are usable for Pods to be injected, else 0.",
			func() float64 { return flag01(!p.tracker.Summary().On) }),
		gauge("nodedns_webhook_cluster_dns_known", "1 while ClusterIP, cluster domain and search domains are known, else 0.",
			func() float64 { return flag01(p.discovery.Missing() == "") }),
		gauge("nodedns_webhook_state_age_seconds", "For how long decisions have rested on the last known state because the API server or a watch of it is away, 0 while they rest on the present one.",
			func() float64 { return p.stale().Seconds() }),
		gauge("nodedns_webhook_configuration_problems", "Ways in which the flags and the webhook configuration disagree; the log names them.",
			func() float64 { return float64(a.problems.Load()) }),
		gauge("nodedns_webhook_unproven_nodes", "Nodes with a usable cache whose readiness does not prove the backstop, for -fallback-nameserver=auto.",
			func() float64 { return float64(p.tracker.Summary().Unproven) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "nodedns_webhook_watch_errors_total",
			Help: "Watches of the API server that ended with an error."},
			func() float64 { return float64(p.errors.Load()) }),
		gauge("nodedns_webhook_certificate_expiry_timestamp_seconds", "End of the serving certificate as Unix time, 0 while there is none.",
			func() float64 {
				if expiry := source.Expiry(); !expiry.IsZero() {
					return float64(expiry.Unix())
				}
				return 0
			}),
		gauge("nodedns_webhook_certificate_ready", "1 while the API servers trust the serving certificate, else 0.",
			func() float64 { return flag01(source.Ready() == nil) }),
	)
}

func flag01(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
