package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodedns/nodedns/cache/internal/forward"
	"github.com/nodedns/nodedns/cache/internal/listen"
	"github.com/nodedns/nodedns/cache/internal/node"
	"github.com/nodedns/nodedns/cache/internal/ops"
	"github.com/nodedns/nodedns/cache/internal/resolve"
)

// metrics are those of all rooms, registered together.
type metrics struct {
	registry *prometheus.Registry
	process  *ops.ProcessMetrics
	listen   *listen.Metrics
	resolve  *resolve.Metrics
	forward  *forward.Metrics
	node     *node.Metrics
}

func newMetrics() metrics {
	reg := prometheus.NewRegistry()
	return metrics{
		registry: reg, process: ops.NewMetrics(reg, build()), listen: listen.NewMetrics(reg), resolve: resolve.NewMetrics(reg),
		forward: forward.NewMetrics(reg), node: node.NewMetrics(reg),
	}
}
