package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodedns/nodedns/cache/internal/node"
)

// serviceVariable is the variable in which kubelet tells a Pod the ClusterIP of a Service of its own namespace, provided that
// the Service is older than the Pod. That is how the cluster DNS is found without a token.
func serviceVariable(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_HOST"
}

// dnsServices are the names cluster DNS goes by in kube-system, the usual one first.
func dnsServices() []string { return []string{"kube-dns", "coredns", "rke2-coredns-rke2-coredns"} }

// upstreamService is the Service with the cluster DNS Pods behind it whose ClusterIP nobody steers away.
const upstreamService = "kube-dns-upstream"

// cluster is what is known of the cluster DNS.
type cluster struct {
	dns      []netip.Addr // its ClusterIPs; none: unknown or none
	upstream []netip.Addr // where cluster names go; none: unknown
	hint     string       // what to do when upstream is unknown
}

// findCluster finds the cluster DNS from flags and environment. mode is empty when no node is set up.
func findCluster(o *options, mode node.Mode, lookup func(string) (string, bool)) (cluster, error) {
	var c cluster
	c.dns = o.clusterDNS
	if len(c.dns) == 0 && !o.noClusterDNS {
		for _, s := range dnsServices() {
			a, err := serviceAddr(s, lookup)
			if err != nil {
				return c, err
			}
			if a.IsValid() {
				c.dns = []netip.Addr{a}
				break
			}
		}
	}
	if o.managesNode() && len(c.dns) == 0 && !o.noClusterDNS {
		return c, fmt.Errorf("the ClusterIP of the cluster DNS is not known: none of the variables %s is set (the Service must be in this namespace and older than this Pod); set -cluster-dns, or -cluster-dns=none to go without backstop",
			strings.Join(serviceVariables(dnsServices()), ", "))
	}
	if c.upstream = o.clusterUpstream; len(c.upstream) > 0 {
		return c, c.checkOwn(o, mode)
	}
	switch a, err := c.upstreamFromServices(o, mode, lookup); {
	case err != nil:
		return c, err
	case a.IsValid():
		c.upstream = []netip.Addr{a}
	case mode == node.IPVS || mode == "":
		c.upstream = c.dns
	}
	c.hint = fmt.Sprintf("it is not known where cluster names go: set -cluster-upstream or -cluster-dns, or make a Service that sets %s",
		strings.Join(serviceVariables(upstreamCandidates(o, mode)), " or "))
	return c, c.checkOwn(o, mode)
}

func serviceVariables(services []string) []string {
	var out []string
	for _, s := range services {
		out = append(out, serviceVariable(s))
	}
	return out
}

// upstreamCandidates lists the Services that may say where cluster names go. In IPVS mode the cluster DNS itself is right,
// since kube-proxy owns its ClusterIP; in the other modes that address is steered to the cache.
func upstreamCandidates(o *options, mode node.Mode) []string {
	switch {
	case o.upstreamSvc != "":
		return []string{o.upstreamSvc}
	case mode == node.IPVS:
		return nil
	}
	return []string{upstreamService}
}

func (c *cluster) upstreamFromServices(o *options, mode node.Mode, lookup func(string) (string, bool)) (netip.Addr, error) {
	for _, s := range upstreamCandidates(o, mode) {
		if a, err := serviceAddr(s, lookup); err != nil || a.IsValid() {
			return a, err
		}
	}
	return netip.Addr{}, nil
}

// serviceAddr reads a Service's variable; no variable, an empty one and that of a headless Service give no address.
func serviceAddr(service string, lookup func(string) (string, bool)) (netip.Addr, error) {
	value, ok := lookup(serviceVariable(service))
	if !ok || value == "" || value == "None" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(value)
	if err != nil {
		return a, fmt.Errorf("variable %s=%q is not an IP address", serviceVariable(service), value)
	}
	return a, nil
}

// checkOwn refuses an upstream that would lead the questions back to this process (N11).
func (c *cluster) checkOwn(o *options, mode node.Mode) error {
	if !o.managesNode() {
		return nil
	}
	own := slices.Clone(o.localIPs)
	if mode != node.IPVS {
		own = append(own, c.dns...)
	}
	for _, u := range c.upstream {
		if slices.Contains(own, u) {
			return fmt.Errorf("cluster names would go to %s, an address of this cache: set -upstreamsvc or -cluster-upstream to another Service of the cluster DNS (%s)", u, upstreamService)
		}
	}
	return nil
}
