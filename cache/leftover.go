package main

import (
	"net/netip"
	"slices"

	"github.com/nodedns/nodedns/cache/internal/corefile"
)

// dropUnserved takes ClusterIPs that are not this node's to serve out of the configuration. kube-proxy leaves IPVS mode
// without taking them off kube-ipvs0: they can be bound there, but what is asked there does not come here, and a cache that
// waits for its own answer would never start again.
func (p *process) dropUnserved(cfg *corefile.Config) (*corefile.Config, error) {
	if p.node == nil {
		return cfg, nil
	}
	own, opts := p.node.Addrs(), &p.reload.source.opts
	kept := slices.DeleteFunc(slices.Clone(opts.ServerIPs), func(a netip.Addr) bool { return !slices.Contains(own, a) })
	if len(kept) == len(opts.ServerIPs) {
		return cfg, nil
	}
	opts.ServerIPs = kept
	return p.reload.source.load()
}
