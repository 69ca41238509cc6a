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
	reg, nodeReg := prometheus.NewRegistry(), prometheus.NewRegistry()
	nodeMetrics := node.NewMetrics(nodeReg)
	reg.MustRegister(nodeReg) // after the above: it is described as it is now
	return metrics{
		registry: reg, listen: listen.NewMetrics(reg), resolve: resolve.NewMetrics(reg), forward: forward.NewMetrics(reg), node: nodeMetrics,
		process: ops.NewMetrics(reg, build(), func() ops.SetupErrors { return nodeErrors(nodeReg) }),
	}
}

// nodeErrors puts the failures of the node room under the incumbent's names.
func nodeErrors(g prometheus.Gatherer) ops.SetupErrors {
	out := make(ops.SetupErrors)
	families, err := g.Gather()
	if err != nil {
		return out // and the gathering of all metrics fails with the same error
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n := m.GetCounter().GetValue()
			switch f.GetName() {
			case "nodedns_node_xtables_lock_waits_total":
				out[ops.SetupRulesLock] += n
			case "nodedns_node_step_failures_total":
				switch m.GetLabel()[0].GetValue() {
				case "link", "address", "route":
					out[ops.SetupLinkAdd] += n
				default:
					out[ops.SetupRules] += n
				}
			}
		}
	}
	return out
}
