package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/listen"
	"github.com/nodedns/nodedns/cache/internal/node"
	"github.com/nodedns/nodedns/cache/internal/ops"
	"github.com/nodedns/nodedns/cache/internal/probe"
)

func newLogger(o *options, env environment, level *slog.LevelVar) *slog.Logger {
	level.Set(o.logLevel)
	opts := &slog.HandlerOptions{Level: level}
	if o.logJSON {
		return slog.New(slog.NewJSONHandler(env.stderr, opts))
	}
	return slog.New(slog.NewTextHandler(env.stderr, opts))
}

func newBuilder(log *slog.Logger, env environment, m metrics) *builder {
	return &builder{log: log, stdout: env.stdout, resolve: m.resolve, forward: m.forward, nonce: probe.NewName(), interfaces: interfaceAddrs}
}

// corefileOptions gathers what a Corefile may refer to.
func corefileOptions(o *options, mode node.Mode, c cluster, env environment) corefile.Options {
	opts := corefile.Options{
		LocalIPs: o.localIPs, ClusterDNS: c.upstream, Domain: o.clusterDomain, ResolvConf: o.resolvConf, Port: o.dnsPort, Env: env.lookup,
		Hints: map[string]string{"__PILLAR__CLUSTER__DNS__": c.hint},
	}
	if o.managesNode() && mode != node.IPVS && mode != "" {
		opts.ServerIPs = c.dns
	}
	return opts
}

// process is one run of the cache.
type process struct {
	o       *options
	env     environment
	log     *slog.Logger
	node    *node.Node // nil when no node is set up
	cluster cluster
	server  *server
	web     *web
	reload  *reloader
}

// serve starts the cache, runs it until ctx ends, and stops it. What can be checked is checked before anything on the node
// is touched.
func serve(ctx context.Context, o *options, env environment) error {
	m := newMetrics()
	stdout, stderr := newLineQueue(env.stdout, m.process.LogDropped), newLineQueue(env.stderr, m.process.LogDropped)
	defer stderr.close(time.Second)
	defer stdout.close(time.Second)
	env.stdout, env.stderr = stdout, stderr
	level := &slog.LevelVar{}
	p := &process{o: o, env: env, log: newLogger(o, env, level)}
	memory := limitMemory(o.memoryLimit, p.log)
	mode, err := p.mode(ctx)
	if err != nil {
		return err
	}
	if p.cluster, err = findCluster(o, mode, env.lookup); err != nil {
		return err
	}
	p.dropClusterIPs(mode)
	p.reload = &reloader{
		log: p.log, metrics: m.process, level: level, base: o.logLevel, always: o.reloadSignal,
		source: newSource(o, corefileOptions(o, mode, p.cluster, env), p.log, m.process), builder: newBuilder(p.log, env, m),
	}
	p.reload.builder.memory = memory
	p.server = newServer(p.log, m.listen)
	p.reload.server = p.server
	p.newWeb(m)
	cfg, err := p.reload.source.wait(ctx, o.wait)
	if err != nil {
		return err
	}
	if err := p.foresee(mode, cfg); err != nil {
		return err
	}
	if err := p.newNode(mode, cfg, m.node); err != nil {
		return err
	}
	p.log.Info("starting", "version", versionText(), "corefile", cfg.Blocks[0].Pos.File, "kube_proxy", mode, "local", o.localIPs, "cluster_dns", p.cluster.dns)
	return p.run(ctx, cfg)
}

// interrupted turns the error of a start that was ended by a signal into none.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// mode finds kube-proxy's mode, waiting a bounded time for a kube-proxy that starts at the same time as this process.
func (p *process) mode(ctx context.Context) (node.Mode, error) {
	if p.o.mode != "" || !p.o.managesNode() {
		return p.o.mode, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.o.wait)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var reason error // the last one that is not only the end of the wait
	for {
		mode, err := node.DetectMode(ctx, p.o.modeAt)
		if err == nil {
			return mode, nil
		}
		if reason == nil {
			p.log.Warn("waiting for kube-proxy", "error", err, "most", p.o.wait)
		}
		if reason == nil || ctx.Err() == nil {
			reason = err
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("-mode=auto, within %s (-wait): %w (%w)", p.o.wait, reason, ctx.Err())
		case <-tick.C:
		}
	}
}

// dropClusterIPs takes the cluster DNS out of -localip, where the incumbent's manifests put it: in IPVS mode it belongs to
// kube-ipvs0 (N11), in the others it is an address of its own kind.
func (p *process) dropClusterIPs(mode node.Mode) {
	if !p.o.managesNode() {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(p.o.localIPs), func(a netip.Addr) bool { return slices.Contains(p.cluster.dns, a) })
	if len(kept) == len(p.o.localIPs) || len(kept) == 0 {
		return // the latter is refused, with the reason, by the node room
	}
	if mode == node.IPVS {
		p.log.Warn("the ClusterIP of the cluster DNS is not bound: with kube-proxy in IPVS mode it belongs to kube-ipvs0", "localip", p.o.localIPs, "kept", kept)
	}
	p.o.localIPs = kept
}

// foresee refuses what would fail later, when the node is set up in part.
func (p *process) foresee(mode node.Mode, cfg *corefile.Config) error {
	if p.o.pidFile != "" {
		if err := tryPID(p.o.pidFile); err != nil {
			return err
		}
	}
	if !p.o.managesNode() {
		return nil
	}
	for _, a := range p.o.localIPs {
		if !a.IsPrivate() && !a.IsLinkLocalUnicast() && !a.IsLoopback() {
			p.log.Warn("-localip names a public address: from this node nobody else is reached there any more", "address", a)
		}
	}
	return p.reload.builder.covers(cfg, p.o, mode, p.cluster)
}

func (p *process) newWeb(m metrics) {
	setup := prometheus.NewRegistry()
	setup.MustRegister(m.process.SetupErrors())
	p.web = &web{
		proof:   &proof{server: p.server, name: p.reload.builder.nonce},
		servers: ops.NewServers(p.log, m.process), all: m.registry, setup: setup, setupAt: p.o.metricsListen,
		rules: p.o.setupRules, leave: p.o.teardown,
	}
	p.web.say("starting")
	p.reload.web = p.web
}

// newNode prepares the node room, and tells the builder of the node's addresses.
func (p *process) newNode(mode node.Mode, cfg *corefile.Config, m *node.Metrics) error {
	p.reload.builder.limitsOf = func() listen.Config { return listen.Config{Drain: p.o.drain} }
	if !p.o.managesNode() {
		return nil
	}
	health := p.o.healthPort
	if health == 0 {
		health = healthPort(cfg)
	}
	var err error
	p.node, err = node.New(node.Config{
		Link: p.o.interfaceName, Local: p.o.localIPs, ClusterIP: p.cluster.dns, Mode: mode, ModeAt: p.modeAt(), Port: p.o.dnsPort,
		HealthPort: health, SkipLink: !p.o.setupInterface, SkipRules: !p.o.setupRules, Tracked: !p.o.notrack, Guard: p.o.guard,
		Flavour: p.o.flavour, Lease: p.o.lease, Sync: p.o.syncInterval, Leave: p.o.teardown,
	}, p.log, m)
	if err != nil {
		return fmt.Errorf("setting up the node: %w", err)
	}
	p.web.node = p.node
	p.web.proof.mark = node.ProbeMark
	return nil
}

// modeAt is where kube-proxy is asked again while running, so that a changed mode is noticed: not if the mode was given.
func (p *process) modeAt() []string {
	if p.o.mode != "" {
		return nil
	}
	return p.o.modeAt
}

func healthPort(cfg *corefile.Config) uint16 {
	for _, b := range cfg.Blocks {
		if b.Health == nil {
			continue
		}
		if _, port, ok := cutLast(b.Health.Addr, ":"); ok {
			return parsePort(port, func(error) {})
		}
	}
	return 0
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
