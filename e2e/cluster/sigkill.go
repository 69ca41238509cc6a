package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/load"
)

// KillConfig says how to kill a cache while a Pod asks.
type KillConfig struct {
	// Kills is how often.
	Kills int
	// Rate is in questions a second. A User-Mode Linux network loses some packets between nodes above 100.
	Rate int
	// Calm is how long the load runs before the first kill, between a cache that is back and the next kill, and at the end.
	Calm time.Duration
	// Baseline is how long the same load runs against the plain ClusterIP, without kills, before.
	Baseline time.Duration
}

// maxListed is how many failed questions are listed one by one.
const maxListed = 20

// KillResult is what that cost.
type KillResult struct {
	Kills int `json:"kills"`
	// Queries and Failed count the questions over all kills.
	Queries int `json:"queries"`
	Failed  int `json:"failed"`
	// OutageMS is the longest time in which every question failed.
	OutageMS float64 `json:"outage_ms"`
	// AnsweredBy counts the answers of the cache and of the cluster DNS.
	AnsweredBy map[string]int `json:"answered_by"`
	Errors     map[string]int `json:"errors,omitempty"`
	RatePerSec int            `json:"rate_per_second"`
	// Events are the single kills.
	Events []Kill `json:"events"`
	// FailedAtMS are the times of the first questions that failed, in milliseconds since the load began.
	FailedAtMS []float64 `json:"failed_at_ms"`
	P50MS      float64   `json:"p50_ms"`
	P99MS      float64   `json:"p99_ms"`
	// The baseline is the same load against the plain ClusterIP without any kill.
	BaselineQueries  int            `json:"baseline_queries"`
	BaselineFailed   int            `json:"baseline_failed"`
	BaselineOutageMS float64        `json:"baseline_outage_ms"`
	BaselineBy       map[string]int `json:"baseline_answered_by"`
	BaselineP50MS    float64        `json:"baseline_p50_ms"`
	BaselineP99MS    float64        `json:"baseline_p99_ms"`
}

// A Kill is one SIGKILL.
type Kill struct {
	// AtMS is when, in milliseconds since the load began.
	AtMS float64 `json:"at_ms"`
	// BackSeconds is how long it took until the cache was ready again.
	BackSeconds float64 `json:"back_seconds"`
	at          time.Time
}

// Excess is how many questions failed beyond the baseline's rate.
func (r KillResult) Excess() float64 {
	if r.BaselineQueries == 0 {
		return float64(r.Failed)
	}
	return float64(r.Failed) - float64(r.Queries)*float64(r.BaselineFailed)/float64(r.BaselineQueries)
}

// Crowded says that questions which failed were sent closer together than the rate allows. Then the machine had stood still,
// the load made up for it in one go, and the kill met a cache with more questions in its sockets than the load puts there.
func (r KillResult) Crowded() bool {
	at := slices.Sorted(slices.Values(r.FailedAtMS))
	step := 1000 / float64(r.RatePerSec)
	for i := 2; i < len(at); i++ {
		if at[i]-at[i-2] < step {
			return true
		}
	}
	return false
}

// KillCache kills the cache on the Pod's node by SIGKILL while the Pod asks open-loop, each time after it was back.
func (e *Env) KillCache(ctx context.Context, pod *Pod, node *bed.Node, c KillConfig) (r KillResult, err error) {
	r.RatePerSec = c.Rate
	rate, limit := "-rate="+strconv.Itoa(c.Rate), "-limit=10m"
	e.con.Step("baseline: %d questions a second to the plain ClusterIP for %s", c.Rate, c.Baseline)
	base, err := timedLoad(ctx, pod, c.Baseline, rate, "-server="+bed.DNSServiceIP)
	if err != nil {
		return r, err
	}
	r.BaselineQueries, r.BaselineFailed, r.BaselineOutageMS, r.BaselineBy = base.Queries, base.Failed, base.OutageMS, base.By
	r.BaselineP50MS, r.BaselineP99MS = base.P50MS, base.P99MS
	e.con.Step("  %d asked, %d failed, answered by %v", base.Queries, base.Failed, base.By)

	e.con.Step("now %d questions a second to the Pod's first nameserver, and %d SIGKILLs to the cache", c.Rate, c.Kills)
	l := pod.StartLoad(ctx, rate, limit)
	events, killErr := e.kill(ctx, node, l, c)
	res, err := l.Stop()
	if err := errors.Join(killErr, err); err != nil {
		return r, err
	}
	for i := range events {
		events[i].AtMS = float64(events[i].at.Sub(res.Start).Microseconds()) / 1000
	}
	for _, f := range res.Failures[:min(len(res.Failures), maxListed)] {
		r.FailedAtMS = append(r.FailedAtMS, f.SentMS)
		e.con.Step("  failed at %.0f ms: %s", f.SentMS, f.Error)
	}
	r.Kills, r.Events = len(events), events
	r.Queries, r.Failed, r.OutageMS, r.AnsweredBy, r.Errors = res.Queries, res.Failed, res.OutageMS, res.By, res.Errors
	r.P50MS, r.P99MS = res.P50MS, res.P99MS
	e.con.Step("  %d asked, %d failed, answered by %v", res.Queries, res.Failed, res.By)
	return r, nil
}

func (e *Env) kill(ctx context.Context, node *bed.Node, l *Load, c KillConfig) (events []Kill, err error) {
	if err := calm(ctx, l, c.Calm); err != nil {
		return nil, err
	}
	for i := range c.Kills {
		_, before, _, err := e.CachePod(ctx, node.Name)
		if err != nil {
			return events, err
		}
		pids, err := node.Pids(ctx, cacheName)
		if err != nil {
			return events, err
		}
		if len(pids) != 1 {
			return events, fmt.Errorf("%d processes of the cache on %s instead of one", len(pids), node.Name)
		}
		// Looking for the process has kept the node's only processor busy: let it calm down, so that what is killed is a
		// cache that serves, not one that waits for its turn.
		if err := calm(ctx, l, time.Second); err != nil {
			return events, err
		}
		// The load runs on the same node, and so by the same clock.
		at, err := node.Agent.Signal(ctx, pids[0], syscall.SIGKILL)
		if err != nil {
			return events, fmt.Errorf("killing the cache: %w", err)
		}
		e.con.Step("  SIGKILL %d of %d: process %d on %s", i+1, c.Kills, pids[0], node.Name)
		begin := time.Now()
		// kubelet waits 10 s before the second start and 20 s before the third; all that time the cluster DNS must answer.
		err = host.Until(ctx, "the cache to be back", 3*time.Minute, func(ctx context.Context) error {
			_, restarts, ready, err := e.CachePod(ctx, node.Name)
			if err == nil && (restarts <= before || !ready) {
				err = fmt.Errorf("%d restarts, ready: %t", restarts, ready)
			}
			return err
		})
		if err != nil {
			return events, e.explain(ctx, err, cacheNamespace)
		}
		events = append(events, Kill{at: at, BackSeconds: time.Since(begin).Seconds()})
		e.con.Step("  the cache is back after %.1fs", events[i].BackSeconds)
		if err := calm(ctx, l, c.Calm); err != nil {
			return events, err
		}
	}
	return events, nil
}

// calm lets the load run on for a while.
func calm(ctx context.Context, l *Load, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return l.Running()
	}
}

func timedLoad(ctx context.Context, pod *Pod, d time.Duration, args ...string) (load.Result, error) {
	l := pod.StartLoad(ctx, append(args, "-limit="+d.String())...)
	select {
	case r := <-l.result:
		return r.Result, r.err
	case <-ctx.Done():
		_, err := l.Stop()
		return load.Result{}, errors.Join(context.Cause(ctx), err)
	}
}
