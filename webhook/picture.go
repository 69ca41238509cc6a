package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nodedns/nodedns/webhook/internal/discovery"
	"github.com/nodedns/nodedns/webhook/internal/egress"
	"github.com/nodedns/nodedns/webhook/internal/namespaces"
	"github.com/nodedns/nodedns/webhook/internal/readiness"
)

// picture is everything known of the cluster, kept by informers.
type picture struct {
	tracker    *readiness.Tracker
	discovery  *discovery.Discovery
	namespaces *namespaces.Namespaces
	policies   *egress.Policies // nil if nobody asks
	nodes      corelisters.NodeLister

	factories []informers.SharedInformerFactory
	synced    []cache.InformerSynced
	complete  chan struct{}          // closed once all is synced
	streams   *streams               // nil if nobody asks
	outage    atomic.Pointer[outage] // nil while the picture is kept
	told      func(*outage)          // is told when an outage begins, and with nil when it has ended; may be nil
	errors    atomic.Int64
	log       *slog.Logger
}

// newPicture sets the informers up; Run starts them. The client's watches go through streams, which may be nil.
func newPicture(o options, client kubernetes.Interface, streams *streams, log *slog.Logger, turned func(readiness.Summary)) (*picture, error) {
	p := &picture{log: log, streams: streams, complete: make(chan struct{})}
	known, err := o.discovery(o.readResolvConf(log))
	if err != nil {
		return nil, err
	}
	if p.discovery, err = discovery.New(known); err != nil {
		return nil, fmt.Errorf("discovering the cluster DNS: %w", err)
	}
	if p.tracker, err = readiness.New(o.readiness(), turned); err != nil {
		return nil, fmt.Errorf("tracking the caches: %w", err)
	}
	if _, err := labels.Parse(o.cacheSelector); err != nil {
		return nil, fmt.Errorf("-cache-selector: %w", err)
	}

	everywhere := p.factory(client)
	system := p.factory(client, informers.WithNamespace("kube-system"))
	caches := p.factory(client, informers.WithNamespace(o.cacheNamespace), informers.WithTweakListOptions(func(l *metav1.ListOptions) {
		l.LabelSelector = o.cacheSelector
	}))

	nodes, pods := everywhere.Core().V1().Nodes(), caches.Core().V1().Pods()
	services, spaces := system.Core().V1().Services(), everywhere.Core().V1().Namespaces()
	for _, path := range []string{"/api/v1/nodes", "/api/v1/namespaces", "/api/v1/namespaces/kube-system/services", "/api/v1/namespaces/" + o.cacheNamespace + "/pods"} {
		streams.expect(path)
	}
	watched := []cache.SharedIndexInformer{nodes.Informer(), pods.Informer(), services.Informer(), spaces.Informer()}
	p.nodes = nodes.Lister()
	fed, err := readiness.Feed(p.tracker, nodes.Informer(), pods.Informer())
	if err != nil {
		return nil, err
	}
	registration, err := discovery.Feed(p.discovery, services.Informer())
	if err != nil {
		return nil, err
	}
	for _, registration := range append(fed, registration) {
		p.synced = append(p.synced, registration.HasSynced)
	}
	if p.namespaces, err = namespaces.New(spaces.Informer(), client.CoreV1().Namespaces()); err != nil {
		return nil, err
	}
	p.synced = append(p.synced, spaces.Informer().HasSynced)
	if o.networkPolicy {
		streams.expect("/apis/networking.k8s.io/v1/networkpolicies")
		policies := everywhere.Networking().V1().NetworkPolicies().Informer()
		if p.policies, err = egress.New(policies, known.LocalIPs); err != nil {
			return nil, err
		}
		watched = append(watched, policies)
		p.synced = append(p.synced, policies.HasSynced)
	}
	for _, informer := range watched {
		if err := informer.SetWatchErrorHandlerWithContext(p.watchFailed); err != nil {
			return nil, fmt.Errorf("setting a watch error handler: %w", err)
		}
	}
	return p, nil
}

func (p *picture) factory(client kubernetes.Interface, options ...informers.SharedInformerOption) informers.SharedInformerFactory {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, options...)
	p.factories = append(p.factories, factory)
	return factory
}

// run keeps the picture until ctx ends. Before the first full picture nothing is ready; afterwards the last one stands,
// whatever happens to the API server.
func (p *picture) run(ctx context.Context) error {
	for _, factory := range p.factories {
		factory.Start(ctx.Done())
	}
	defer func() {
		for _, factory := range p.factories {
			factory.Shutdown()
		}
	}()
	begin := time.Now()
	if !cache.WaitForCacheSync(ctx.Done(), p.synced...) {
		return nil // the end came first
	}
	p.tracker.Synced()
	// The first lists leave several times their trimmed size behind; the runtime would give that back in minutes.
	debug.FreeOSMemory()
	close(p.complete)
	summary := p.tracker.Summary()
	p.log.Info("the cluster is known", "after", time.Since(begin).Round(time.Millisecond), "nodes", summary.Nodes, "usable", summary.Usable)
	if missing := p.discovery.Missing(); missing != "" {
		p.log.Warn("Pods are left as they are until this is known", "missing", missing)
	}
	return p.tracker.Run(ctx)
}

// known tells whether the first full picture is there.
func (p *picture) known() bool {
	select {
	case <-p.complete:
		return true
	default:
		return false
	}
}

// wait waits for the first full picture, for a minute at most.
func (p *picture) wait(ctx context.Context) error {
	select {
	case <-p.complete:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Minute):
		return errors.New("the API server gave no full picture of the cluster within a minute; may these credentials list nodes, namespaces, services and network policies?")
	}
}

func (p *picture) watchFailed(ctx context.Context, reflector *cache.Reflector, err error) {
	p.errors.Add(1)
	cache.DefaultWatchErrorHandler(ctx, reflector, err)
}

// nodeList is every Node as known.
func (p *picture) nodeList() []*corev1.Node {
	all, err := p.nodes.List(labels.Everything())
	if err != nil {
		return nil // a lister of an informer has no errors
	}
	return all
}
