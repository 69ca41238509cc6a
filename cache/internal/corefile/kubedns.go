package corefile

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// KubeDNS is what the ConfigMap kube-dns adds to a Corefile.
type KubeDNS struct {
	Stubs     []Stub           // sorted by zone
	Upstreams []netip.AddrPort // take the place of /etc/resolv.conf in __PILLAR__UPSTREAM__SERVERS__
}

// Stub is a domain that has name servers of its own.
type Stub struct {
	Zone    string // canonical
	Servers []netip.AddrPort
}

// ParseKubeDNS reads the values of the ConfigMap's keys stubDomains, a JSON object of lists, and upstreamNameservers, a JSON
// list; an empty value is an absent key. Each entry is checked by itself: what is wrong with one is returned as a problem and
// that entry left out. A value that is no JSON of the right kind is an error, and then nothing is returned.
// dir is where the values came from, for messages.
func ParseKubeDNS(dir, stubDomains, upstreamNameservers string) (KubeDNS, []*Problem, error) {
	var k KubeDNS
	var problems []*Problem
	skip := func(key, format string, args ...any) {
		problems = append(problems, &Problem{Pos: Pos{File: dir + "/" + key}, Text: "skipped: " + fmt.Sprintf(format, args...)})
	}
	if strings.TrimSpace(stubDomains) != "" {
		var stubs map[string]json.RawMessage
		if err := json.Unmarshal([]byte(stubDomains), &stubs); err != nil {
			return KubeDNS{}, problems, fmt.Errorf("%s/stubDomains: %w; allowed: {\"example.com\": [\"192.0.2.1\"]}", dir, err)
		}
		for _, domain := range slices.Sorted(maps.Keys(stubs)) {
			stub, bad, err := parseStub(domain, stubs[domain])
			for _, b := range bad {
				skip("stubDomains", "%q: %s", domain, b)
			}
			switch {
			case err != nil:
				skip("stubDomains", "%v", err)
			case slices.ContainsFunc(k.Stubs, func(s Stub) bool { return s.Zone == stub.Zone }):
				skip("stubDomains", "%q: the same domain as another entry", domain)
			default:
				k.Stubs = append(k.Stubs, stub)
			}
		}
	}
	if strings.TrimSpace(upstreamNameservers) != "" {
		var servers []json.RawMessage
		if err := json.Unmarshal([]byte(upstreamNameservers), &servers); err != nil {
			return KubeDNS{}, problems, fmt.Errorf("%s/upstreamNameservers: %w; allowed: [\"192.0.2.1\"]", dir, err)
		}
		addrs, bad := parseServers(servers)
		for _, b := range bad {
			skip("upstreamNameservers", "%s", b)
		}
		k.Upstreams = addrs
	}
	return k, problems, nil
}

func parseStub(domain string, value json.RawMessage) (stub Stub, bad []string, err error) {
	if stub.Zone, err = parseName(domain); err != nil {
		return stub, nil, fmt.Errorf("domain %w", err)
	}
	if stub.Zone == "." {
		return stub, nil, fmt.Errorf("domain %q: the root is set by upstreamNameservers", domain)
	}
	var servers []json.RawMessage
	if err := json.Unmarshal(value, &servers); err != nil {
		return stub, nil, fmt.Errorf("%q: %s is not a list of addresses", domain, value)
	}
	if stub.Servers, bad = parseServers(servers); len(stub.Servers) == 0 {
		return stub, bad, fmt.Errorf("%q: no usable server", domain)
	}
	return stub, bad, nil
}

// parseServers reads addresses with optional ports. Duplicates are merged; beyond CoreDNS's 15 the rest is left out.
func parseServers(servers []json.RawMessage) (addrs []netip.AddrPort, bad []string) {
	for _, raw := range servers {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			bad = append(bad, fmt.Sprintf("server %s is not a string", raw))
			continue
		}
		a, err := parseAddrPort(s, 53)
		switch {
		case err != nil:
			bad = append(bad, fmt.Sprintf("server %q is not IP or IP:port (host names cannot be asked for their own server)", s))
		case slices.Contains(addrs, a):
		case len(addrs) == maxTargets:
			bad = append(bad, fmt.Sprintf("server %q is one more than %d", s, maxTargets))
		default:
			addrs = append(addrs, a)
		}
	}
	return addrs, bad
}

// stubTTL is the longest an answer of a stub domain is kept, as with the incumbent.
const stubTTL = 30 * time.Second

// addStubs adds a block for each stub domain. It happens on the checked configuration and not on its text, so no value can
// be mistaken for syntax. A zone that the Corefile serves itself wins.
func (p *parser) addStubs(cfg *Config) {
	for _, s := range p.opts.KubeDNS.Stubs {
		zone := Zone{s.Zone, p.opts.Port}
		i := slices.IndexFunc(cfg.Blocks, func(b *Block) bool { return slices.Contains(b.Zones, zone) })
		if i >= 0 {
			p.warnings = append(p.warnings, &Problem{Pos: cfg.Blocks[i].Pos, Text: fmt.Sprintf(
				"the stub domain %s of the kube-dns ConfigMap is skipped: this block serves it", s.Zone)})
			continue
		}
		b := &Block{
			Pos: Pos{File: "kube-dns/stubDomains"}, Zones: []Zone{zone}, Errors: &Errors{},
			Cache: defaultCache(),
		}
		for _, a := range slices.Concat(p.opts.LocalIPs, p.opts.ServerIPs) {
			if bind := (Bind{Addr: a}); !slices.Contains(b.Bind, bind) {
				b.Bind = append(b.Bind, bind)
			}
		}
		f := defaultForward()
		f.Pos, f.From = b.Pos, []string{"."}
		for _, a := range s.Servers {
			f.Targets = append(f.Targets, Target{Addr: a})
		}
		b.Cache.Success.MaxTTL, b.Cache.Denial.MaxTTL = stubTTL, stubTTL
		b.Forward = []*Forward{f}
		cfg.Blocks = append(cfg.Blocks, b)
	}
}
