package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// leaseRig is a running node on a fake, in a bubble with a clock of its own.
func leaseRig(t *testing.T, cfg Config, proof Proof) (f *fake, n *Node, stop func()) {
	t.Helper()
	f = newFake()
	n = started(t, makeNode(t, cfg, f, kindOurs))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx, proof) }()
	return f, n, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestLeaseFollowsTheProof(t *testing.T) {
	for _, c := range []struct {
		level       Level
		failure     error
		least, most time.Duration // in service after the last proof
	}{
		{LevelOwner, errors.New("no reply"), 2 * time.Second, 3 * time.Second},
		{LevelSocket, errors.New("no reply"), 2 * time.Second, 3 * time.Second},
		{LevelLease, errors.New("no reply"), 2 * time.Second, 3 * time.Second},
		{LevelSocket, fmt.Errorf("%w: worker 1", ErrStuck), 0, 1100 * time.Millisecond},
	} {
		t.Run(c.level.String()+", "+c.failure.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stuck atomic.Bool
				f, n, stop := leaseRig(t, Config{Guard: c.level}, answering{func() error {
					if stuck.Load() {
						return c.failure
					}
					return nil
				}})
				a := addrs("169.254.25.10")[0]
				time.Sleep(10 * time.Second)
				if !f.leased(a) || !n.InService() {
					t.Fatal("not in service while the proof holds")
				}
				stuck.Store(true)
				begin := time.Now()
				for f.leased(a) {
					time.Sleep(10 * time.Millisecond)
				}
				if took := time.Since(begin); took < c.least || took > c.most {
					t.Errorf("in service for %s after the last proof, want %s to %s", took, c.least, c.most)
				}
				time.Sleep(2 * time.Second)
				if n.InService() {
					t.Error("says it is in service")
				}
				stuck.Store(false)
				time.Sleep(1100 * time.Millisecond)
				if !f.leased(a) || !n.InService() {
					t.Error("not in service again a second after the proof holds again")
				}
				stop()
				if f.leased(a) || n.InService() {
					t.Error("in service after Run returned")
				}
			})
		})
	}
}

// TestLeaseOutlivesNoHang has a proof that does not return, as when the whole process stands still.
func TestLeaseOutlivesNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hang atomic.Bool
		f, n, stop := leaseRig(t, Config{}, proofFunc(func(ctx context.Context) error {
			if hang.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}))
		a := addrs("169.254.25.10")[0]
		time.Sleep(5500 * time.Millisecond)
		hang.Store(true)
		time.Sleep(3 * time.Second)
		if f.leased(a) {
			t.Error("in service three seconds into a hang")
		}
		hang.Store(false)
		time.Sleep(4 * time.Second)
		if !f.leased(a) {
			t.Error("not back in service after it")
		}
		if got := testutil.ToFloat64(n.m.unproved); got == 0 {
			t.Error("missed proofs are not counted")
		}
		stop()
	})
}

type proofFunc func(context.Context) error

func (p proofFunc) Prove(ctx context.Context) error { return p(ctx) }

// TestLeaseOfPlainRules has no kernel to end it: the rules come and go.
func TestLeaseOfPlainRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stuck atomic.Bool
		f, n, stop := leaseRig(t, Config{Guard: LevelPlain}, answering{func() error {
			if stuck.Load() {
				return errors.New("stuck")
			}
			return nil
		}})
		steers := func() bool { return strings.Contains(f.String(), "raw -A PREROUTING -d 169.254.25.10/32") }
		time.Sleep(2500 * time.Millisecond)
		if !steers() {
			t.Error("no rules steer while in service")
		}
		stuck.Store(true)
		time.Sleep(4 * time.Second)
		if steers() || n.InService() {
			t.Error("rules steer to a cache that does not answer")
		}
		stuck.Store(false)
		time.Sleep(1500 * time.Millisecond)
		if !steers() {
			t.Error("no rules steer after it answers again")
		}
		if got := testutil.ToFloat64(n.m.repairs.WithLabelValues("stale")) + testutil.ToFloat64(n.m.repairs.WithLabelValues("rule")); got != 0 {
			t.Errorf("%v of our own changes were counted as repairs", got)
		}
		stop()
		if steers() {
			t.Error("rules steer after Run returned")
		}
	})
}

func TestLeaseSetDestroyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n, stop := leaseRig(t, Config{Guard: LevelSocket}, answering{})
		time.Sleep(1500 * time.Millisecond)
		f.mu.Lock()
		clear(f.sets)
		f.mu.Unlock()
		time.Sleep(1500 * time.Millisecond)
		if !f.leased(addrs("169.254.25.10")[0]) {
			t.Error("the set was not made again")
		}
		if got := testutil.ToFloat64(n.m.repairs.WithLabelValues("set")); got != 1 {
			t.Errorf("%v repairs of kind set, want 1", got)
		}
		stop()
	})
}

func TestMetricsOfService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := NewMetrics(reg)
		m.serving(false)
		time.Sleep(3 * time.Second)
		m.serving(true)
		m.serving(true)
		time.Sleep(7 * time.Second)
		if got := m.inService.seconds(); got != 7 {
			t.Errorf("in service for %v s, want 7", got)
		}
		if got := m.backstop.seconds(); got != 3 {
			t.Errorf("on the backstop for %v s, want 3", got)
		}
		problems, err := testutil.GatherAndLint(reg)
		if err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
	})
}

func TestKeeperFollowsTheMode(t *testing.T) {
	f := newFake()
	cfg := Config{Guard: LevelSocket, Mode: IPVS, Local: addrs("169.254.25.10"), ClusterIP: addrs("10.96.0.10")}
	proxy := newProxyMetrics(t)
	cfg.ModeAt = []string{proxy.addr}
	n := started(t, makeNode(t, cfg, f, kindOurs))
	backstop := func() string { return natRules(f) }
	if got := backstop(); !strings.Contains(got, "10.96.0.10:53") {
		t.Fatalf("no backstop to the ClusterIP:\n%s", got)
	}
	// kube-proxy has left IPVS, but its rules are not there yet.
	proxy.say("nftables")
	n.keepProxy(t.Context())
	n.keepRules(t.Context())
	if got := backstop(); n.Mode() != NFTables || !strings.Contains(got, "10.96.0.10:53") {
		t.Errorf("mode %s, backstop:\n%s", n.Mode(), got)
	}
	steersOnlyTo(t, n, f, "169.254.25.10") // the ClusterIP is to be served from the next start on
	f.endpoints = endpointsOf("10.96.0.10:53", "10.244.0.7:53", "10.244.0.8:53")
	n.keepProxy(t.Context())
	n.keepRules(t.Context())
	got := backstop()
	if strings.Contains(got, "10.96.0.10:53") || !strings.Contains(got, "10.244.0.7:53") || !strings.Contains(got, "--probability 0.50000") {
		t.Errorf("the backstop does not go to the endpoints:\n%s", got)
	}
	// kube-proxy restarts, and knows nothing for a moment: what was last known stays.
	proxy.say("")
	f.endpoints = nil
	n.keepProxy(t.Context())
	n.keepRules(t.Context())
	if again := backstop(); again != got || n.Mode() != NFTables {
		t.Errorf("mode %s, backstop:\n%s", n.Mode(), again)
	}
	proxy.say("ipvs")
	n.keepProxy(t.Context())
	n.keepRules(t.Context())
	if got := backstop(); !strings.Contains(got, "10.96.0.10:53") || strings.Contains(got, "10.244") {
		t.Errorf("back in IPVS, backstop:\n%s", got)
	}
}

// steersOnlyTo renews the lease and checks that of the two addresses it leads clients to this one.
func steersOnlyTo(t *testing.T, n *Node, f *fake, local string) {
	t.Helper()
	n.renew()
	for _, a := range addrs("169.254.25.10", "10.96.0.10") {
		if got := f.leased(a); got != (a.String() == local) {
			t.Errorf("%s has the lease: %t", a, got)
		}
	}
	for line := range strings.SplitSeq(f.String(), "\n") {
		if strings.Contains(line, "raw -A") && strings.Contains(line, " 10.96.0.10/32 ") {
			t.Errorf("steers to an address that is not bound: %s", line)
		}
	}
}

// TestLeftoverIsNotSteeredTo: a ClusterIP that a kube-proxy which was in IPVS mode left on its link is not bound, so nobody is
// led to it.
func TestLeftoverIsNotSteeredTo(t *testing.T) {
	for _, level := range []Level{LevelOwner, LevelSocket} {
		f := newFake()
		f.links[ipvsLink] = link{Kind: kindOurs, Addrs: addrs("10.96.0.10")}
		n := started(t, makeNode(t, Config{Guard: level, Mode: IPTables, Local: addrs("169.254.25.10"), ClusterIP: addrs("10.96.0.10")}, f, kindOurs))
		steersOnlyTo(t, n, f, "169.254.25.10")
	}
}

// TestKeeperLeavesTheClusterIP is for a node that goes to IPVS, which takes the ClusterIP for itself.
func TestKeeperLeavesTheClusterIP(t *testing.T) {
	f := newFake()
	proxy := newProxyMetrics(t)
	n := started(t, makeNode(t, Config{Guard: LevelSocket, Mode: IPTables, ModeAt: []string{proxy.addr}}, f, kindOurs))
	if !n.renew() || !f.leased(addrs("10.96.0.10")[0]) {
		t.Fatal("the ClusterIP is not served")
	}
	proxy.say("ipvs")
	n.keepProxy(t.Context())
	n.keepLink()
	n.keepRules(t.Context())
	n.renew()
	if f.leased(addrs("10.96.0.10")[0]) || strings.Contains(f.String(), "-d 10.96.0.10/32") || strings.Contains(f.String(), "spare 10.96.0.10") {
		t.Errorf("still holds the ClusterIP:\n%s", f)
	}
	if !f.leased(addrs("169.254.25.10")[0]) {
		t.Error("the local address is no longer served")
	}
}
