package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/nodedns/nodedns/webhook/internal/taint"
)

// lead does what one replica at a time does, whenever this one is it, until ctx ends. Reviews do not depend on it.
func lead(ctx context.Context, o options, client kubernetes.Interface, p *picture, events *events, log *slog.Logger) error {
	duties := []func(context.Context) error{events.write}
	if o.startupTaint != "" {
		controller, err := taint.New(taint.Config{Key: o.startupTaint}, p.nodeList, p.tracker.ReadySinceBoot, client.CoreV1().Nodes(), log)
		if err != nil {
			return fmt.Errorf("setting up the removal of startup taints: %w", err)
		}
		duties = append(duties, controller.Run)
	}
	all := func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, duty := range duties {
			group.Go(func() error { return duty(ctx) })
		}
		return group.Wait()
	}
	if !o.leaderElect {
		return all(ctx)
	}
	return elect(ctx, o, client, all, log)
}

// elect runs duties while this replica holds the Lease. A lost Lease is campaigned for again, not died of.
func elect(ctx context.Context, o options, client kubernetes.Interface, duties func(context.Context) error, log *slog.Logger) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the host name: %w", err)
	}
	identity := host + "_" + string(uuid.NewUUID())
	var one sync.Mutex // duties of an earlier term end before those of a later one begin
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Name: "nodedns-webhook", Namespace: o.namespace},
				Client:     client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			},
			LeaseDuration:   15 * time.Second,
			RenewDeadline:   10 * time.Second,
			RetryPeriod:     2 * time.Second,
			ReleaseOnCancel: true,
			Name:            "nodedns-webhook",
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					one.Lock()
					defer one.Unlock()
					if err := duties(ctx); err != nil && ctx.Err() == nil {
						log.Error("a leader's duty ended", "error", err)
					}
				},
				OnStoppedLeading: func() {},
				OnNewLeader:      func(leader string) { log.Info("leader elected", "leader", leader, "self", leader == identity) },
			},
		})
		if err != nil {
			return fmt.Errorf("setting up the leader election: %w", err)
		}
		elector.Run(ctx)
	}
	one.Lock()
	defer one.Unlock()
	return nil
}
