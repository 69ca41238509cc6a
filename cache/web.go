package main

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/node"
	"github.com/nodedns/nodedns/cache/internal/ops"
	"github.com/nodedns/nodedns/cache/internal/probe"
)

// stuckAfter is how long a worker may be away. An idle one comes round each half second.
const stuckAfter = 2 * time.Second

// proof says whether this process answers, to the lease, to /health and to /ready. It asks no upstream.
type proof struct {
	server *server
	name   string
	mark   uint32
}

// Prove asks every address that is served or steered to over UDP and TCP, and meanwhile looks at the progress of every worker,
// since a question reaches only one of those that share an address. A worker without progress is node.ErrStuck.
func (p *proof) Prove(ctx context.Context) error {
	addrs := p.server.asked()
	if len(addrs) == 0 {
		return fmt.Errorf("nothing is served")
	}
	for i, a := range addrs {
		addrs[i] = netip.AddrPortFrom(reachable(a.Addr()), a.Port())
	}
	answered := make(chan error, 1)
	go func() {
		answered <- probe.New(probe.Config{Addrs: slices.Compact(addrs), Name: p.name, Mark: p.mark}).Prove(ctx)
	}()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		if err := p.server.progress(stuckAfter); err != nil {
			return fmt.Errorf("%w: %w", node.ErrStuck, err)
		}
		select {
		case err := <-answered:
			return err
		case <-look.C:
		}
	}
}

// reachable is the address to ask when all addresses are bound.
func reachable(a netip.Addr) netip.Addr {
	if a.IsUnspecified() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return a
}

// web builds the endpoints of the web servers and what they say.
type web struct {
	proof    *proof
	node     *node.Node // nil when no node is set up
	rules    bool       // the node is to have rules
	leave    node.Leave // what stays of them at exit
	servers  *ops.Servers
	all      *prometheus.Registry
	setup    *prometheus.Registry // the incumbent's own metrics, for -metrics-listen-address
	setupAt  string
	state    atomic.Pointer[string] // why not ready; nil: ready as far as the start is concerned
	lastFail atomic.Pointer[string] // the last reload that failed; nil: none since the last good one
}

// set makes the web servers those of cfg. /ready is also on the server of /health, so that it is there with Corefiles that
// have no ready.
func (w *web) set(cfg *corefile.Config) {
	alive := ops.Once(w.proof.Prove, 500*time.Millisecond)
	health := ops.HealthHandler(alive)
	ready := w.needing(
		ops.ReadyHandler(func(ctx context.Context) []string { return w.reasons(ctx, alive) }, w.details),
		ops.ReadyHandler(func(ctx context.Context) []string { return append(w.reasons(ctx, alive), w.lasting()...) }, w.details))
	var eps []ops.Endpoint
	rate := 0
	for _, b := range cfg.Blocks {
		if b.Health != nil {
			eps = append(eps, ops.Endpoint{Kind: ops.Health, Addr: b.Health.Addr, Handler: health}, ops.Endpoint{Kind: ops.Ready, Addr: b.Health.Addr, Handler: ready})
		}
		if b.Ready != nil {
			eps = append(eps, ops.Endpoint{Kind: ops.Ready, Addr: b.Ready.Addr, Handler: ready})
		}
		if b.Prometheus != nil {
			eps = append(eps, ops.Endpoint{Kind: ops.Metrics, Addr: b.Prometheus.Addr, Handler: ops.MetricsHandler(w.all)})
		}
		if b.PProf != nil {
			eps = append(eps, ops.Endpoint{Kind: ops.PProf, Addr: b.PProf.Addr, Handler: ops.PProfHandler()})
			rate = max(rate, b.PProf.Block)
		}
	}
	if w.setupAt != "" {
		eps = append(eps, ops.Endpoint{Kind: ops.Metrics, Addr: w.setupAt, Handler: ops.MetricsHandler(w.setup)})
	}
	runtime.SetBlockProfileRate(rate)
	w.servers.Set(eps)
}

// say notes why the process is not ready; empty: it is.
func (w *web) say(state string) {
	if state == "" {
		w.state.Store(nil)
		return
	}
	w.state.Store(&state)
}

// reasons lists what speaks against being ready. An upstream never does: stale answers are better than none, and cluster DNS
// being down must not take every cache of the cluster out of service.
func (w *web) reasons(ctx context.Context, alive ops.Check) []string {
	var out []string
	if s := w.state.Load(); s != nil {
		out = append(out, *s)
	}
	if err := alive(ctx); err != nil {
		out = append(out, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return out
}

// details are for the person who reads /ready.
func (w *web) details() []ops.Detail {
	var out []ops.Detail
	if w.node == nil {
		out = append(out, ops.Detail{Name: "node", Text: "not set up by this process (-setupinterface=false -setupiptables=false)"})
	} else {
		lease := "off: cluster DNS answers"
		if w.node.InService() {
			lease = "on: this cache answers"
		}
		out = append(out, ops.Detail{Name: "mode", Text: string(w.node.Mode())}, ops.Detail{Name: "guard", Text: w.node.Level().String()},
			ops.Detail{Name: "lease", Text: lease}, ops.Detail{Name: "node", Text: w.node.Status()})
	}
	var served []string
	for _, a := range w.proof.server.addrs() {
		served = append(served, a.String())
	}
	out = append(out, ops.Detail{Name: "serves", Text: strings.Join(served, " ")})
	for _, f := range w.servers.Failed() {
		out = append(out, ops.Detail{Name: "web server", Text: f})
	}
	if f := w.lastFail.Load(); f != nil {
		out = append(out, ops.Detail{Name: "reload failed", Text: *f})
	}
	return out
}
