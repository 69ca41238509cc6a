package admit

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// Metrics of the review path.
type Metrics struct {
	decisions *prometheus.CounterVec // by reason and dry_run
	refusals  *prometheus.CounterVec // by status
	panics    prometheus.Counter
	duration  prometheus.Histogram

	real, dry map[poddns.Reason]prometheus.Counter
}

// NewMetrics makes the metrics and registers them; a nil registerer leaves them unregistered.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodedns_webhook_decisions_total",
			Help: "Pods reviewed, by what became of them.",
		}, []string{"reason", "dry_run"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodedns_webhook_refused_requests_total",
			Help: "Requests that were no reviews, or too many at a time (503), by HTTP status.",
		}, []string{"status"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodedns_webhook_panics_total",
			Help: "Reviews that ran into a fault of the webhook and left the Pod as it was.",
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "nodedns_webhook_review_duration_seconds",
			Help:    "Time from the first byte of a review to the last of its answer.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .05, .1, .5, 1, 2},
		}),
		real: map[poddns.Reason]prometheus.Counter{},
		dry:  map[poddns.Reason]prometheus.Counter{},
	}
	for _, reason := range poddns.Reasons() {
		m.real[reason] = m.decisions.WithLabelValues(string(reason), "false")
		m.dry[reason] = m.decisions.WithLabelValues(string(reason), "true")
	}
	if registerer != nil {
		registerer.MustRegister(m.decisions, m.refusals, m.panics, m.duration)
	}
	return m
}

func (m *Metrics) decided(reason poddns.Reason, dryRun bool) {
	if dryRun {
		m.dry[reason].Inc()
	} else {
		m.real[reason].Inc()
	}
}

// refused counts by the few statuses that a request can be refused with.
func (m *Metrics) refused(status int) {
	label := "400"
	switch status {
	case http.StatusMethodNotAllowed:
		label = "405"
	case http.StatusRequestEntityTooLarge:
		label = "413"
	case http.StatusUnsupportedMediaType:
		label = "415"
	case http.StatusServiceUnavailable:
		label = "503"
	}
	m.refusals.WithLabelValues(label).Inc()
}
