package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/node"
)

// shortly bounds what must not hold up the end of the process.
const shortly = 10 * time.Second

// clearing bounds clearing the node: another program may hold the xtables lock for ten seconds. With the drain it stays
// within the 30 s that Kubernetes gives a Pod to end.
const clearing = 20 * time.Second

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
	cfg, err := p.dropUnserved(cfg)
	if err != nil {
		return p.giveUp(err)
	}
	g.Go(func() error { return p.web.servers.Run(web) })
	if err := p.reload.load(cfg); err != nil {
		return p.giveUp(err)
	}
	if p.node != nil {
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
	p.reload.builder.own = p.node.Addrs()
	for _, a := range p.node.Addrs() {
		p.server.steered = append(p.server.steered, netip.AddrPortFrom(a, p.o.dnsPort))
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
		ctx, cancel := context.WithTimeout(context.Background(), clearing)
		defer cancel()
		if terr := p.node.TearDown(ctx); terr != nil {
			err = errors.Join(err, fmt.Errorf("clearing the node: %w", terr))
		}
	}
	switch {
	case err != nil: // main says why
	case p.node == nil || p.o.teardown == node.LeaveAll:
		p.log.Info("stopped")
	default:
		p.log.Info("stopped; addresses and backstop stay for Pods that have the address, until nodedns-cache cleanup")
	}
	return err
}

// giveUp ends a start that failed before the rules: what an injected Pod needs stays, and no address besides.
func (p *process) giveUp(err error) error {
	if p.node == nil {
		p.server.stop()
		return err
	}
	return p.tearDown(err)
}
