package discovery

import (
	"fmt"
	"net/netip"
	"strings"
)

// Resolver is what a resolv.conf says that kubelet wrote for a Pod with ClusterFirst.
type Resolver struct {
	Nameservers  []netip.Addr
	Domain       string   // the cluster domain, empty if unknown
	HostSearches []string // what follows the cluster's own searches
	Known        bool     // whether HostSearches are the node's
}

// ReadResolvConf reads the resolv.conf of a Pod in namespace. problem says why Domain or HostSearches are unknown.
//
// Kubelet writes the searches "ns.svc.domain svc.domain domain" and then the node's. A resolv.conf that does not begin
// so was not written for ClusterFirst, and says nothing about other Pods. A node search that the API would refuse in a
// dnsConfig makes the list unknown: without it Pods would resolve less than before, with it they could not be created.
func ReadResolvConf(text, namespace string) (r Resolver, problem string) {
	var searches []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if ip, err := netip.ParseAddr(fields[1]); err == nil {
				r.Nameservers = append(r.Nameservers, ip)
			}
		case "search", "domain": // the last of them counts (resolv.conf(5))
			searches = fields[1:]
		}
	}
	if len(searches) < 3 {
		return r, "resolv.conf has fewer than three search domains, it is not that of a Pod with ClusterFirst"
	}
	domain := strings.TrimSuffix(searches[2], ".")
	if !validDomain(domain) || searches[1] != "svc."+searches[2] || searches[0] != namespace+".svc."+searches[2] {
		return r, fmt.Sprintf("the searches %q in resolv.conf do not begin as ClusterFirst's in namespace %s", searches, namespace)
	}
	r.Domain = domain
	r.Known = true
	for _, s := range searches[3:] {
		// "search ." (systemd writes it for "none") tries the name as it is, which every resolver does anyway.
		if s == "." {
			continue
		}
		if !validDomain(strings.TrimSuffix(s, ".")) {
			r.HostSearches, r.Known = nil, false
			return r, fmt.Sprintf("the API does not take the node's search domain %q in a dnsConfig", s)
		}
		r.HostSearches = append(r.HostSearches, s)
	}
	return r, ""
}
