package listen

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what happens at the server sockets, for all endpoints together.
type Metrics struct {
	panics       prometheus.Counter
	overload     [2]prometheus.Counter // by wire.Transport
	accepted     prometheus.Counter
	acceptError  prometheus.Counter
	open         prometheus.Gauge
	rejected     [rejections]prometheus.Counter
	closed       [closings]prometheus.Counter
	receiveError prometheus.Counter
	sendError    prometheus.Counter
}

// rejection is why a new TCP connection was turned away.
type rejection int

const (
	rejectTotal rejection = iota
	rejectClient
	rejections
)

// closing is why the server ended a TCP connection that the client did not end.
type closing int

const (
	closeIdle closing = iota
	closeEvicted
	closeSlowRead
	closeSlowWrite
	closeBroken
	closings
)

// NewMetrics builds the metrics and registers them with reg; with a nil reg they
// are counted but shown nowhere. It panics if they are registered already.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "coredns_panics_total",
			Help: "Panics while a query was handled; the query was answered SERVFAIL.",
		}),
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodedns_tcp_connections_accepted_total",
			Help: "TCP connections taken from clients.",
		}),
		acceptError: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodedns_accept_errors_total",
			Help: "Times a TCP connection could not be taken: no descriptors, no memory, or the client was gone.",
		}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodedns_tcp_connections",
			Help: "TCP connections open now.",
		}),
		receiveError: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodedns_receive_errors_total",
			Help: "Receive calls on UDP sockets that failed.",
		}),
		sendError: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodedns_send_errors_total",
			Help: "UDP replies that the kernel would not send.",
		}),
	}
	overload := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nodedns_overload_total",
		Help: "Queries answered SERVFAIL because too many were being resolved.",
	}, []string{"proto"})
	m.overload = [2]prometheus.Counter{overload.WithLabelValues("udp"), overload.WithLabelValues("tcp")}
	rejected := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nodedns_tcp_connections_rejected_total",
		Help: "TCP connections closed on arrival, by the limit that was reached.",
	}, []string{"limit"})
	for i, limit := range [rejections]string{"total", "client"} {
		m.rejected[i] = rejected.WithLabelValues(limit)
	}
	closed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nodedns_tcp_connections_closed_total",
		Help: "TCP connections ended by this side, by reason.",
	}, []string{"reason"})
	for i, reason := range [closings]string{"idle", "evicted", "slow_read", "slow_write", "broken"} {
		m.closed[i] = closed.WithLabelValues(reason)
	}
	if reg != nil {
		reg.MustRegister(m.panics, m.accepted, m.acceptError, m.open, m.receiveError, m.sendError, overload, rejected, closed)
	}
	return m
}
