package webhook_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"
)

// traffic creates Pods (dry runs, which are reviewed alike) at a fixed rate and notes what became of them.
type traffic struct {
	c      *cluster
	cancel context.CancelFunc
	done   chan struct{}

	mu          sync.Mutex
	created     int
	failed      []string // creations that failed
	notInjected []time.Time
	latencies   []time.Duration
}

func (c *cluster) traffic(namespace string, every time.Duration) *traffic {
	whole := c.t.Context()
	ctx, cancel := context.WithCancel(whole)
	tr := &traffic{c: c, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(tr.done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		var calls sync.WaitGroup
		defer calls.Wait()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				calls.Go(func() { tr.one(whole, namespace) }) // one that has begun is finished
			}
		}
	}()
	c.t.Cleanup(func() { cancel(); <-tr.done })
	return tr
}

func (tr *traffic) one(ctx context.Context, namespace string) {
	begin := time.Now()
	p, err := tr.c.dryRun(ctx, namespace)
	took := time.Since(begin)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case err != nil:
		tr.failed = append(tr.failed, err.Error())
	default:
		tr.created++
		tr.latencies = append(tr.latencies, took)
		if !injected(p) {
			tr.notInjected = append(tr.notInjected, begin)
		}
	}
}

// counts are the numbers so far.
func (tr *traffic) counts() (created, failed, notInjected int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.created, len(tr.failed), len(tr.notInjected)
}

// stop ends the traffic.
func (tr *traffic) stop() {
	tr.cancel()
	<-tr.done
}

// wantClean ends the traffic and wants every Pod created and injected, and no failed call by the API server's count.
func (tr *traffic) wantClean(t *testing.T, failOpenBefore int) {
	t.Helper()
	tr.stop()
	if len(tr.failed) > 0 || len(tr.notInjected) > 0 || tr.created == 0 {
		t.Errorf("of %d Pods %d could not be created and %d were not injected: %s",
			tr.created, len(tr.failed), len(tr.notInjected), strings.Join(tr.failed[:min(3, len(tr.failed))], "; "))
	}
	for i, at := range tr.notInjected {
		if i == 0 || at.Sub(tr.notInjected[i-1]) > time.Second {
			t.Logf("not injected from %s on", at.Format(time.TimeOnly))
		}
	}
	if n := tr.c.failOpen() - failOpenBefore; n != 0 {
		for line := range strings.Lines(hostTail(tr.c.cp.Workspace().Path("kube-apiserver.log"), 10_000)) {
			if strings.Contains(line, "ailed calling webhook") {
				t.Log(strings.TrimSpace(line))
			}
		}
		t.Errorf("the API server counts %d failed calls", n)
	}
	t.Logf("%d Pods created, none failed", tr.created)
}
