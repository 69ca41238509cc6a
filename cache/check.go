package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/listen"
	"github.com/nodedns/nodedns/cache/internal/node"
	"github.com/nodedns/nodedns/cache/internal/ops"
)

// check validates a Corefile and prints what it means. It binds and asks nothing. A placeholder whose value is only known on
// a node stays in the text.
func check(o *options, env environment) error {
	if len(o.args) != 1 || strings.HasPrefix(o.args[0], "-") {
		return fmt.Errorf("check takes the flags and then one argument, the Corefile; got %q", o.args)
	}
	name := o.args[0]
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("reading the Corefile: %w", err)
	}
	c, err := findCluster(&options{
		clusterDNS: o.clusterDNS, clusterUpstream: o.clusterUpstream, upstreamSvc: o.upstreamSvc, noClusterDNS: o.noClusterDNS,
	}, o.mode, env.lookup)
	if err != nil {
		return err
	}
	opts := corefileOptions(o, o.mode, c, env)
	opts.KeepUnknown = true
	src := &source{log: slog.New(slog.DiscardHandler), kubeDNS: o.kubeDNSDir, noted: make(map[string]string),
		metrics: ops.NewMetrics(nil, ops.Build{}, nil)}
	opts.KubeDNS = src.readKubeDNS()
	if err := src.complaints(); err != nil {
		return err
	}
	cfg, err := corefile.Parse(name, string(text), opts)
	if err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintln(env.stderr, "note: "+w.Error())
	}
	b := newBuilder(slog.New(slog.DiscardHandler), env, newMetrics())
	b.interfaces = anyInterface
	if err := tryBuild(b, cfg); err != nil {
		return err
	}
	// What a start with the same flags would refuse. Of -mode=auto nothing is known here.
	if err := b.covers(cfg, o, o.mode, c); err != nil {
		return err
	}
	_, err = fmt.Fprint(env.stdout, cfg)
	return err
}

// anyInterface stands for an interface of the node, which may not exist where a Corefile is checked.
func anyInterface(string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
}

// tryBuild makes the parts of cfg and throws them away: some mistakes show only there. An unknown upstream is replaced by an
// address of the documentation range.
func tryBuild(b *builder, cfg *corefile.Config) error {
	probe := *cfg
	probe.Blocks = nil
	for _, b := range cfg.Blocks {
		block := *b
		block.Forward = nil
		for _, f := range b.Forward {
			fw := *f
			fw.Targets = nil
			for _, t := range f.Targets {
				if t.Placeholder != "" {
					t = corefile.Target{Addr: netip.MustParseAddrPort("192.0.2.53:53")}
				}
				fw.Targets = append(fw.Targets, t)
			}
			block.Forward = append(block.Forward, &fw)
		}
		probe.Blocks = append(probe.Blocks, &block)
	}
	b.limitsOf = func() listen.Config { return listen.Config{} }
	r, err := b.build(&probe, nil)
	if err != nil {
		return err
	}
	r.discard(nil)
	return nil
}

// cleanup removes everything the cache set up on this node.
func cleanup(ctx context.Context, o *options, env environment) error {
	if len(o.args) > 0 {
		return fmt.Errorf("cleanup takes no argument, %q given", o.args[0])
	}
	log := newLogger(o, env, &slog.LevelVar{})
	if err := node.Cleanup(ctx, o.interfaceName, log); err != nil {
		return fmt.Errorf("cleaning up the node: %w", err)
	}
	if o.stay {
		log.Info("nothing of the cache is left on this node; waiting for a signal")
		<-ctx.Done()
	}
	return nil
}
