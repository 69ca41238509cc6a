// Package discovery finds out what ClusterFirst is made of in this cluster: the ClusterIP of the cluster DNS, the
// cluster domain and the search domains kubelet takes over from the node. It owns that knowledge, and where it does not
// know it says so: the zero poddns.Cluster.
//
//	found, err := discovery.New(discovery.Config{LocalIPs: …, ResolvConf: text, Namespace: "nodedns"})
//	registration, err := discovery.Feed(found, services)
//	cluster := found.Cluster()
package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// Config gives what is known beforehand; each field that is set overrides what would be discovered.
type Config struct {
	// LocalIPs are the addresses of the node caches, at least one.
	LocalIPs []netip.Addr
	// ClusterIPs of the cluster DNS. Empty: those of the Service.
	ClusterIPs []netip.Addr
	// Service is the name of the cluster DNS Service. Empty: found by label and well-known names.
	Service string
	// Domain is the cluster domain. Empty: from ResolvConf.
	Domain string
	// HostSearches are the node's search domains. Nil: from ResolvConf; empty: there are none.
	HostSearches []string
	// ResolvConf is the text of the own resolv.conf, which kubelet wrote for ClusterFirst. Empty: unknown.
	ResolvConf string
	// Namespace is the own namespace, which the searches in ResolvConf begin with.
	Namespace string
}

// Validate lists every problem of c.
func (c Config) Validate() error {
	var errs []error
	if len(c.LocalIPs) == 0 {
		errs = append(errs, errors.New("no address of the node caches"))
	}
	for _, ip := range slices.Concat(c.LocalIPs, c.ClusterIPs) {
		if !ip.IsValid() || ip.IsUnspecified() || ip.Zone() != "" {
			errs = append(errs, fmt.Errorf("address %q: want an IP address of a host", ip))
		}
	}
	families := make(map[bool]bool) // by whether it is IPv4
	for _, ip := range c.LocalIPs {
		switch {
		case ip.IsLoopback() || ip.IsMulticast():
			errs = append(errs, fmt.Errorf("address %s: no Pod reaches its node there", ip))
		case families[ip.Is4()]:
			errs = append(errs, fmt.Errorf("addresses of the node caches %v: want at most one for each IP family", c.LocalIPs))
		}
		families[ip.Is4()] = true
	}
	for _, ip := range c.ClusterIPs {
		if slices.Contains(c.LocalIPs, ip) {
			errs = append(errs, fmt.Errorf("address %s is both the cache's and the cluster DNS's", ip))
		}
	}
	if c.Domain != "" && !validDomain(c.Domain) {
		errs = append(errs, fmt.Errorf("cluster domain %q: want a DNS name in lower case", c.Domain))
	}
	for _, s := range c.HostSearches {
		if !validDomain(s) {
			errs = append(errs, fmt.Errorf("host search domain %q: want a DNS name in lower case", s))
		}
	}
	return errors.Join(errs...)
}

// Discovery is safe for concurrent use.
type Discovery struct {
	cfg      Config
	resolver Resolver
	problem  string
	cluster  atomic.Pointer[poddns.Cluster]

	mu       sync.Mutex
	services map[string]service
}

// New starts from what is known without a cluster.
func New(cfg Config) (*Discovery, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d := &Discovery{cfg: cfg, services: map[string]service{}}
	if cfg.ResolvConf != "" {
		d.resolver, d.problem = ReadResolvConf(cfg.ResolvConf, cfg.Namespace)
	} else {
		d.problem = "no resolv.conf was given"
	}
	if cfg.Domain != "" {
		d.resolver.Domain = cfg.Domain
	}
	if cfg.HostSearches != nil {
		d.resolver.HostSearches, d.resolver.Known = cfg.HostSearches, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settleLocked()
	return d, nil
}

// Cluster is what is known at this moment; the caller must not change its lists.
func (d *Discovery) Cluster() poddns.Cluster { return *d.cluster.Load() }

// Missing says in words what is not known, empty if nothing is.
func (d *Discovery) Missing() string {
	c := d.Cluster()
	switch {
	case len(c.ClusterIPs) == 0:
		return "ClusterIP of the cluster DNS: no Service by that name or label in kube-system"
	case c.Domain == "":
		return "cluster domain: " + d.problem
	case !c.HostSearchesKnown:
		return "search domains of the node: " + d.problem
	}
	return ""
}

func (d *Discovery) settleLocked() {
	cluster := poddns.Cluster{
		LocalIPs:          d.cfg.LocalIPs,
		ClusterIPs:        d.cfg.ClusterIPs,
		Domain:            d.resolver.Domain,
		HostSearches:      d.resolver.HostSearches,
		HostSearchesKnown: d.resolver.Known,
	}
	if len(cluster.ClusterIPs) == 0 {
		cluster.ClusterIPs = d.chooseLocked()
	}
	d.cluster.Store(&cluster)
}

// validDomain tells whether the API takes the name as a search domain, in every version that may meet it.
func validDomain(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }
