package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/nodedns/nodedns/certs"
)

// serverSet is what listens.
type serverSet struct {
	reviews  *http.Server
	plain    []*http.Server
	refused  prometheus.Counter // connections
	stopping *atomic.Bool       // makes /readyz say no
}

func servers(o options, handler http.Handler, registry *prometheus.Registry, source certs.Source, p *picture) serverSet {
	var stopping atomic.Bool
	refused := newRefusedConnections()
	registry.MustRegister(refused)
	reviews := http.NewServeMux()
	reviews.Handle("/mutate", handler)
	set := serverSet{
		reviews: &http.Server{
			Addr:    o.listenAddress,
			Handler: reviews,
			TLSConfig: &tls.Config{
				GetCertificate: source.GetCertificate,
				MinVersion:     tls.VersionTLS12,
				NextProtos:     []string{"h2", "http/1.1"},
			},
			// The API server waits two seconds; whoever takes longer to send is not it.
			ReadHeaderTimeout: 3 * time.Second,
			ReadTimeout:       3 * time.Second,
			WriteTimeout:      5 * time.Second,
			MaxHeaderBytes:    16 << 10,
			HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streamsPerConnection,
				MaxReceiveBufferPerConnection: streamBuffer, MaxReceiveBufferPerStream: streamBuffer},
			// Longer than the API server's own 90 s, so that it is never us who closes a connection it is about to use.
			IdleTimeout: 2 * time.Minute,
		},
		refused:  refused,
		stopping: &stopping,
	}
	if o.metricsAddress != "" {
		mux := http.NewServeMux()
		mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
		set.plain = append(set.plain, plainServer(o.metricsAddress, mux))
	}
	if o.probeAddress != "" {
		mux := http.NewServeMux()
		mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
		mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
			if err := readyToServe(&stopping, source, p); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintf(w, "ok\n%s\n", p.outage.Load().condition())
		})
		set.plain = append(set.plain, plainServer(o.probeAddress, mux))
	}
	return set
}

// plainServer is for those who ask for little and read it at once.
func plainServer(address string, handler http.Handler) *http.Server {
	return &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
}

// readyToServe is about this process alone: neither caches nor cluster DNS count, for a webhook that is out of service
// could not even say why Pods are left as they are.
func readyToServe(stopping *atomic.Bool, source certs.Source, p *picture) error {
	switch {
	case stopping.Load():
		return errors.New("stopping")
	case !p.known():
		return errors.New("the state of the cluster is not known yet")
	}
	return source.Ready()
}

// runServers serves until ctx ends; then /readyz says no, reviews are taken for another -shutdown-delay, and those begun
// by then are finished.
func runServers(ctx context.Context, o options, set serverSet, log *slog.Logger) error {
	listeners := make([]net.Listener, 0, 1+len(set.plain))
	all := append([]*http.Server{set.reviews}, set.plain...)
	for _, server := range all {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", server.Addr)
		if err != nil {
			for _, l := range listeners {
				_ = l.Close() // the process is about to end
			}
			return fmt.Errorf("listening on %s: %w", server.Addr, err)
		}
		listeners = append(listeners, newConnectionLimit(listener, set.refused, log))
	}
	var group errgroup.Group
	failed, fail := context.WithCancel(ctx)
	defer fail()
	for i, server := range all {
		server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
		group.Go(func() error {
			serve := server.Serve
			if server.TLSConfig != nil {
				serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
			}
			if err := serve(listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				fail()
				return fmt.Errorf("serving on %s: %w", server.Addr, err)
			}
			return nil
		})
	}
	log.Info("serving", "reviews", listeners[0].Addr().String())
	<-failed.Done()

	set.stopping.Store(true)
	if o.shutdownDelay > 0 && ctx.Err() != nil {
		log.Info("stopping, reviews are still taken", "delay", o.shutdownDelay)
		time.Sleep(o.shutdownDelay)
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, server := range all {
		if err := server.Shutdown(end); err != nil {
			log.Warn("reviews were cut off", "error", err)
		}
	}
	return group.Wait()
}
