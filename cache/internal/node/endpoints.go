package node

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// endpointReader is what the node room needs to find the endpoints of the cluster DNS. A fake stands in for it in tests.
type endpointReader interface {
	// ProxyEndpoints reads from kube-proxy's nftables rules where it sends what is for the address; none if it has no rule
	// for it.
	ProxyEndpoints(to netip.AddrPort) ([]netip.AddrPort, error)
}

// mostEndpoints bounds the rules that the backstop takes for them.
const mostEndpoints = 8

// targetsLocked is where the backstop sends questions of a family. With IPVS it is the ClusterIP, which IPVS balances. In
// the other modes a flow gets one DNAT, so that kube-proxy's rules would never see a question sent to the ClusterIP: the
// endpoints take its place, as kube-proxy has them.
func (n *Node) targetsLocked(fam family) []netip.AddrPort {
	// A kube-proxy that has just left IPVS may not have its rules yet; until then its frozen services go on answering.
	if known := n.endpoints[fam]; n.mode != IPVS && (len(known) > 0 || n.cfg.Mode != IPVS) {
		return known
	}
	for _, a := range fam.of(n.cfg.ClusterIP) {
		return []netip.AddrPort{netip.AddrPortFrom(a, 53)}
	}
	return nil
}

// keepEndpoints reads the endpoints anew, of the sides for which it is due. Where there are none to be read, those last seen
// stay: a backstop that may be out of date is better than none. While none are known it waits for a busy xtables lock as
// long as ctx lets it: without them the backstop of a predecessor would be taken away.
func (n *Node) keepEndpoints(ctx context.Context, due func(s *side) bool) {
	mode := n.Mode()
	if mode == IPVS {
		return
	}
	for _, s := range n.sides {
		if !due(s) {
			continue
		}
		begin := cpuTime()
		for _, a := range s.fam.of(n.cfg.ClusterIP) {
			found, err := n.readEndpoints(s, mode, netip.AddrPortFrom(a, 53))
			if err != nil || len(found) == 0 {
				s.read.generation = "" // kube-proxy is at work, or another has the lock: the next look sees what there is
			}
			if lockBusy(err) && n.knows(s.fam) {
				continue
			}
			if lockBusy(err) {
				err = n.patiently(ctx, func() error {
					found, err = n.readEndpoints(s, mode, netip.AddrPortFrom(a, 53))
					return err
				})
			}
			if n.problems.note(stepEndpoints, s.fam, err) != nil || len(found) == 0 {
				continue
			}
			slices.SortFunc(found, netip.AddrPort.Compare)
			found = slices.Compact(found)
			found = found[:min(len(found), mostEndpoints)]
			n.mu.Lock()
			changed := !slices.Equal(n.endpoints[s.fam], found)
			if n.endpoints == nil {
				n.endpoints = map[family][]netip.AddrPort{}
			}
			n.endpoints[s.fam] = found
			n.mu.Unlock()
			if changed {
				n.log.Info("the backstop goes to other endpoints", "family", s.fam.String(), "endpoints", found)
				s.stale()
			}
		}
		s.read.allowance.spend(cpuTime() - begin)
	}
}

// always is for those who do not mind what reading costs.
func always(*side) bool { return true }

// endpointsDue says whether kube-proxy's rules may have changed since they were read, and there is CPU time to read them.
func (n *Node) endpointsDue(s *side) bool {
	if n.Mode() == NFTables {
		return true // read without a command, for next to nothing
	}
	now := time.Now()
	if s.tables == nil || !s.read.allowance.has(now, n.part()) {
		return false
	}
	generation := s.generation("nat")
	// In the legacy form one endpoint in another's place changes neither count nor size of the rules.
	if s.flavour != Legacy && generation != "" && generation == s.read.generation && now.Sub(s.read.full) < n.cfg.Sync {
		return false
	}
	s.read.generation, s.read.full = generation, now
	return true
}

// knows says whether endpoints of a family were ever seen.
func (n *Node) knows(fam family) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.endpoints[fam]) > 0
}

func (n *Node) readEndpoints(s *side, mode Mode, to netip.AddrPort) ([]netip.AddrPort, error) {
	if mode == NFTables {
		return n.kernel.ProxyEndpoints(to)
	}
	if s.tables == nil {
		return nil, nil
	}
	return iptablesEndpoints(s.tables, to)
}

// iptablesEndpoints follows kube-proxy's chains (KUBE-SERVICES, KUBE-SVC-…, KUBE-SEP-…) from the address to the DNATs. It
// reads them and never refers to them: kube-proxy could not delete a chain that a rule of ours jumps to, and its whole
// update would fail.
func iptablesEndpoints(t tables, to netip.AddrPort) ([]netip.AddrPort, error) {
	chains := []string{"KUBE-SERVICES"}
	var out []netip.AddrPort
	var lines []string
	for depth := 0; depth < 4 && len(chains) > 0; depth++ {
		// The legacy command has listed the whole table at once.
		if !slices.ContainsFunc(chains, func(c string) bool { return slices.Contains(lines, "-N "+c) }) {
			var err error
			if lines, err = t.List("nat", chains); gone(err) {
				return out, nil // kube-proxy is at work: the next look sees what it made
			} else if err != nil {
				return nil, err
			}
		}
		var next []string
		for _, chain := range chains {
			for _, r := range parseChain(chain, lines) {
				if depth == 0 && !matchesService(r.spec, to) {
					continue
				}
				if d := option(r.spec, "--to-destination"); d != "" {
					if ap, err := netip.ParseAddrPort(d); err == nil {
						out = append(out, ap)
					}
				}
				if j := option(r.spec, "-j"); strings.HasPrefix(j, "KUBE-S") {
					next = append(next, j)
				}
			}
		}
		chains = next
	}
	return out, nil
}

// matchesService says whether a rule of KUBE-SERVICES is the one for UDP to an address.
func matchesService(spec []string, to netip.AddrPort) bool {
	return option(spec, "-d") == cidr(to.Addr()) && option(spec, "-p") == "udp" && option(spec, "--dport") == "53"
}

// option is the word after name.
func option(spec []string, name string) string {
	for i, w := range spec {
		if w == name && i+1 < len(spec) {
			return spec[i+1]
		}
	}
	return ""
}
