package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

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
	level := &slog.LevelVar{}
	p := &process{o: o, env: env, log: newLogger(o, env, level)}
	limitMemory(o.memoryLimit, p.log)
	mode, err := p.mode(ctx)
	if err != nil {
		return err
	}
	if p.cluster, err = findCluster(o, mode, env.lookup); err != nil {
		return err
	}
	p.dropClusterIPs(mode)
	m := newMetrics()
	p.reload = &reloader{
		log: p.log, metrics: m.process, level: level, base: o.logLevel, always: o.reloadSignal,
		source: newSource(o, corefileOptions(o, mode, p.cluster, env), p.log, m.process), builder: newBuilder(p.log, env, m),
	}
	p.server = newServer(p.log, m.listen)
	p.reload.server = p.server
	p.newWeb(m)
	cfg, err := p.reload.source.wait(ctx, o.wait)
	if err != nil {
		return err
	}
	if err := p.newNode(mode, cfg, m.node); err != nil {
		return err
	}
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
	for said := false; ; {
		mode, err := node.DetectMode(ctx, p.o.modeAt)
		if err == nil {
			return mode, nil
		}
		if !said {
			said = true
			p.log.Warn("waiting for kube-proxy", "error", err, "most", p.o.wait)
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("-mode=auto: %w (%w)", err, ctx.Err())
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

func (p *process) newWeb(m metrics) {
	setup := prometheus.NewRegistry()
	setup.MustRegister(m.process.SetupErrors())
	p.web = &web{
		proof:   &proof{server: p.server, name: p.reload.builder.nonce},
		servers: ops.NewServers(p.log, m.process), all: m.registry, setup: setup, setupAt: p.o.metricsListen,
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

// run is the order of starting and stopping. Start: lock, holders of the port, link and addresses, bind, rules, probe, lease,
// ready. Stop: the same backwards.
func (p *process) run(ctx context.Context, cfg *corefile.Config) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR1)
	defer signal.Stop(signals)

	web, stopWeb := context.WithCancel(context.Background()) // /ready says "stopping" until the end
	var g errgroup.Group
	defer func() {
		stopWeb()
		if err := g.Wait(); err != nil {
			p.log.Error("stopping", "error", err)
		}
	}()
	if err := p.takeNode(ctx); err != nil {
		return err
	}
	g.Go(func() error { return p.web.servers.Run(web) })
	if err := p.reload.load(cfg); err != nil {
		return p.giveUp(err)
	}
	if p.node != nil {
		if err := p.everySteeredAddressIsServed(); err != nil {
			return p.giveUp(err)
		}
		if err := p.node.Arm(ctx); err != nil {
			return p.tearDown(err)
		}
	}
	// After the rules, none of which steers yet: without that for its mark, kube-proxy or the backstop would answer the probe.
	if err := p.firstProof(ctx); err != nil {
		return p.giveUp(err)
	}
	if p.o.pidFile != "" {
		if err := writePID(p.o.pidFile); err != nil {
			return p.tearDown(err)
		}
		defer func() { _ = os.Remove(p.o.pidFile) }()
	}
	return p.tearDown(p.whileServing(ctx, signals))
}

// takeNode becomes the node's one owner and makes its addresses local.
func (p *process) takeNode(ctx context.Context) error {
	if p.node == nil {
		return nil
	}
	if err := p.node.Lock(ctx); err != nil {
		return fmt.Errorf("becoming the node's one cache: %w", err)
	}
	holders, err := p.node.Holders(p.o.dnsPort)
	if err != nil {
		p.log.Warn("cannot see who else has the DNS port", "error", err)
	}
	if len(holders) > 0 {
		var who []string
		for _, h := range holders {
			who = append(who, h.String())
		}
		return fmt.Errorf("port %d of this node's cache is taken: %s; stop it, or keep it from these addresses", p.o.dnsPort, strings.Join(who, "; "))
	}
	if err := p.node.SetUp(ctx); err != nil {
		return fmt.Errorf("setting up interface and addresses: %w", err)
	}
	p.reload.builder.own, p.reload.builder.ifaceName = p.node.Addrs(), p.o.interfaceName
	return nil
}

// everySteeredAddressIsServed finds a Corefile that leaves out an address to which the rules lead questions.
func (p *process) everySteeredAddressIsServed() error {
	served := p.server.addrs()
	for _, a := range p.node.Addrs() {
		if at := netip.AddrPortFrom(a, p.o.dnsPort); !slices.Contains(served, at) {
			return fmt.Errorf("no server block of the Corefile binds %s, to which this node's questions would go: add it to bind, or take it out of -localip or -cluster-dns", at)
		}
	}
	return nil
}

// firstProof waits until the cache answers its own questions on every address.
func (p *process) firstProof(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shortly)
	defer cancel()
	for {
		err := p.web.proof.Prove(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cache does not answer its own questions: %w (%w)", err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// whileServing runs until ctx ends: in service, watching the files. Then it goes out of service and waits as long as the
// health directive's lameduck says, still answering.
func (p *process) whileServing(ctx context.Context, signals <-chan os.Signal) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { p.reload.watch(ctx, signals); return nil })
	if p.node != nil {
		g.Go(func() error { return p.node.Run(ctx, p.web.proof) })
	}
	g.Go(func() error {
		if p.inService(ctx); ctx.Err() == nil {
			p.web.say("")
			p.log.Info("ready", "serves", p.server.addrs())
		}
		<-ctx.Done()
		p.web.say("stopping")
		return nil
	})
	err := g.Wait()
	if duck := lameduck(p.server.current.cfg); duck > 0 {
		p.log.Info("out of service, answering on", "lameduck", duck)
		time.Sleep(duck)
	}
	return err
}

// inService waits until the rules lead questions here. It does not wait longer than a lease: where the kernel cannot do what
// it takes, the cache still answers who asks its address, and /ready says what is missing.
func (p *process) inService(ctx context.Context) {
	if p.node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.o.lease)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !p.node.InService() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func lameduck(cfg *corefile.Config) time.Duration {
	var most time.Duration
	for _, b := range cfg.Blocks {
		if b.Health != nil {
			most = max(most, b.Health.Lameduck)
		}
	}
	return most
}

// tearDown closes the sockets, then clears the node as its mode says. err is why.
func (p *process) tearDown(err error) error {
	p.web.say("stopping")
	p.server.stop()
	if p.node != nil {
		ctx, cancel := context.WithTimeout(context.Background(), shortly)
		defer cancel()
		if terr := p.node.TearDown(ctx); terr != nil {
			err = errors.Join(err, fmt.Errorf("clearing the node: %w", terr))
		}
	}
	p.log.Info("stopped")
	return err
}

// giveUp ends a start that failed before the rules: what an injected Pod needs stays, nothing else does.
func (p *process) giveUp(err error) error {
	if p.node == nil {
		p.server.stop()
		return err
	}
	return p.tearDown(err)
}
