// Package node owns everything of the cache that lives in the host's kernel: the link and its addresses, the rules that
// steer DNS traffic to the cache, the guard that ends this when the cache ends, and the backstop that sends the traffic
// to cluster DNS meanwhile. It knows no DNS: whether the cache answers, a Proof says.
//
// The verbs come in this order:
//
//	n, err := node.New(cfg, log, metrics)
//	err = n.Lock(ctx)               // one owner a node; without it nothing is touched
//	held, err := n.Holders(53)      // who else has the port, also through SO_REUSEPORT
//	err = n.SetUp(ctx)              // link, addresses, spare local route
//	…                               // the caller binds n.Addrs() and probes itself through ProbeMark
//	err = n.Arm(ctx)                // rules, set, backstop; the node is not yet in service
//	err = n.Run(ctx, proof)         // in service while proof holds; out of it before Run returns
//	…                               // the caller lets its sockets run dry and closes them
//	err = n.TearDown(ctx)           // what the proxy mode says
//
// A process killed between any two of these leaves a node that resolves, and the next start repairs it. The subcommand
// cleanup calls the function Cleanup alone.
package node

import (
	"context"
	"log/slog"
)

// Proof says whether this process answers.
type Proof interface {
	// Prove returns nil if every worker of the cache answered just now. It must not depend on any upstream: an outage of
	// cluster DNS must not take a cache with stale answers out of service. It is called each Config.Renew, one call at a
	// time, with a deadline of less than the lease.
	Prove(ctx context.Context) error
}

// Node sets up one node. Its verbs are called one after the other; the readers (Addrs, Level, Status, …) at any time.
type Node struct {
	cfg Config
	log *slog.Logger
	m   *Metrics
}

// New checks cfg and returns a Node that has touched nothing yet. A nil metrics counts nowhere.
func New(cfg Config, log *slog.Logger, metrics *Metrics) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if metrics == nil {
		metrics = NewMetrics(nil)
	}
	return &Node{cfg: cfg.withDefaults(), log: log, m: metrics}, nil
}
