package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

// prepare installs the peers, builds CoreDNS and, unless -bin names one,
// nodedns-cache. CoreDNS comes from its own module, with the plugins the
// reference Corefile needs.
func prepare(ctx context.Context, o *options) error {
	con := console.New(os.Stdout)
	err := host.Install(ctx, con,
		host.Package{Name: "dnsperf", Why: "makes the load"},
		host.Package{Name: "unbound", Why: "is measured"},
		host.Package{Name: "dnsmasq-base", Why: "is measured"},
		host.Package{Name: "dnsdist", Why: "is measured"},
	)
	if err != nil {
		return err
	}
	groups := [][]parts.Part{only("coredns", parts.Workloads())}
	if o.Bin == "" {
		groups = append(groups, only("nodedns-cache", parts.Product()))
	}
	bin, err := parts.Build(ctx, con, groups...)
	if err != nil {
		return err
	}
	o.Programs = bin
	if o.Bin == "" {
		o.Bin = filepath.Join(bin, "nodedns-cache")
	}
	if o.Bin, err = filepath.Abs(o.Bin); err != nil {
		return fmt.Errorf("finding nodedns-cache: %w", err)
	}
	return nil
}

func only(name string, group []parts.Part) []parts.Part {
	for _, p := range group {
		if p.Name == name {
			return []parts.Part{p}
		}
	}
	return nil
}
