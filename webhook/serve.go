package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/cert-manager/cert-manager/pkg/server/tls/authority"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/nodedns/nodedns/certs"
	"github.com/nodedns/nodedns/webhook/internal/admit"
)

// caName is the common name of our own CA, by which its certificates are known in a caBundle.
const caName = "nodedns-webhook-ca"

// gcPercent is how much the heap may grow between collections, in place of the usual 100.
const gcPercent = 40

// serve runs the webhook until ctx ends, and then until nobody sends reviews any more.
func serve(ctx context.Context, o options, log *slog.Logger) error {
	if os.Getenv("GOGC") == "" {
		// Reviews make next to no garbage, the first lists make all of it: memory is worth more here than cycles.
		debug.SetGCPercent(gcPercent)
	}
	watches := &streams{}
	config, client, err := o.connect(watches)
	if err != nil {
		return err
	}
	registry := newRegistry()
	events := newEvents(o, client, log)
	picture, err := newPicture(o, client, watches, log, events.breaker)
	if err != nil {
		return err
	}
	picture.told = events.outage
	source, err := o.certs(config, client, picture.discovery.Cluster().Domain, log)
	if err != nil {
		return err
	}
	agreement := &agreement{o: o, client: client, unproven: func() int { return picture.tracker.Summary().Unproven }, log: log}
	registerState(registry, picture, source, agreement)
	handler, err := admit.New(admit.Config{Policy: o.policy()}, o.sources(picture, events), log, admit.NewMetrics(registry))
	if err != nil {
		return fmt.Errorf("setting up the review of Pods: %w", err)
	}

	// What keeps the knowledge must outlive what serves with it: work is cancelled after the servers have ended.
	work, endWork := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), klog.Background()))
	defer endWork()
	group, work := errgroup.WithContext(work)
	group.Go(func() error { return picture.run(work) })
	group.Go(func() error { return picture.watchOutage(work, client) })
	group.Go(func() error { return agreement.keep(work) })
	group.Go(func() error { return source.Run(work) })
	group.Go(func() error { return events.keep(work) })
	group.Go(func() error { return lead(work, o, client, picture, events, log) })
	group.Go(func() error {
		defer endWork()
		// A worker that failed ends the servers as well.
		serving, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(work, cancel)()
		return runServers(serving, o, servers(o, handler, registry, source, picture), log)
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// sources hands the picture to the review.
func (o options) sources(p *picture, events *events) admit.Sources {
	sources := admit.Sources{
		Namespace: p.namespaces.Namespace,
		Cluster:   p.discovery.Cluster,
		Caches:    p.tracker.State,
		Audited:   events.audited,
	}
	if p.policies != nil {
		sources.EgressBlocked = p.policies.Blocked
	}
	return sources
}

// certs makes the source of the serving certificate.
func (o options) certs(config *rest.Config, client kubernetes.Interface, domain string, log *slog.Logger) (certs.Source, error) {
	if o.certMode == certsFiles {
		source, err := certs.NewFiles(certs.FilesConfig{CertFile: o.certFile, KeyFile: o.keyFile}, log)
		if err != nil {
			return nil, fmt.Errorf("setting up certificate files: %w", err)
		}
		return source, nil
	}
	names, ips := o.hosts(domain)
	ca := &authority.DynamicAuthority{
		SecretNamespace: o.namespace,
		SecretName:      o.caSecret,
		RESTConfig:      config,
		CommonName:      caName,
		CADuration:      o.caDuration,
		LeafDuration:    o.leafDuration,
	}
	source, err := certs.NewSelfManaged(certs.SelfManagedConfig{
		CommonName: caName, DNSNames: names, IPs: ips, LeafDuration: o.leafDuration, Overlap: o.certOverlap,
	}, ca, certs.NewKube(client, o.namespace, o.caSecret, o.configuration), log)
	if err != nil {
		return nil, fmt.Errorf("setting up self-managed certificates: %w", err)
	}
	return source, nil
}

// newRegistry is the process's own; nothing registers by itself.
func newRegistry() *prometheus.Registry { return prometheus.NewPedanticRegistry() }
