package corefile

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxTargets is CoreDNS's limit of upstreams a forward.
const maxTargets = 15

// defaultForward is what forward means without options.
func defaultForward() *Forward {
	return &Forward{
		Policy: "random", Expire: 10 * time.Second, ReadTimeout: 2 * time.Second, MaxFails: 2,
		HealthCheck: HealthCheck{Interval: 500 * time.Millisecond, Domain: "."},
	}
}

// forward FROM TO... { … }
func (d *directive) forward() *Forward {
	f := defaultForward()
	f.Pos = d.pos
	if len(d.args) < 2 {
		if len(d.args) == 1 {
			d.fail("no upstream after %q; allowed: IP[:port], tls://IP[:port][%%name], or a file such as /etc/resolv.conf", d.args[0].text)
		} else {
			d.want(2, -1, "a zone and at least one upstream")
		}
	} else {
		f.From = d.names(d.args[:1])
		f.Targets = d.targets(d.args[1:])
	}
	for _, sub := range d.sub {
		d.forwardOption(f, sub)
	}
	for _, t := range f.Targets {
		if t.ServerName != "" && f.TLSServerName != "" {
			d.fail("two TLS names for %s: %q after it and tls_servername %q", t.Addr, t.ServerName, f.TLSServerName)
		}
	}
	if f.ForceTCP && f.PreferUDP { // CoreDNS: force_tcp takes precedence
		f.PreferUDP = false
	}
	if len(d.args) > 1 && d.args[1].pillar == pillarUpstream && len(d.p.opts.KubeDNS.Upstreams) > 0 {
		f.ForceTCP = false // custom resolvers may speak UDP only; truncation still leads to TCP
	}
	return f
}

// checkReachable complains about a forward that never gets a question, since one before it takes all.
func (d *directive) checkReachable(b *Block, f *Forward) {
	for _, before := range b.Forward {
		for _, from := range f.From {
			if len(before.Except) == 0 && slices.Contains(before.From, from) {
				d.fail("%s goes to the upstreams of line %d already", from, before.Pos.Line)
			}
		}
	}
}

func (d *directive) forwardOption(f *Forward, sub *directive) {
	name := d.option(sub)
	one := func(what string) bool { return sub.want(1, 1, name+" with "+what) }
	switch name {
	case "except":
		if sub.want(1, -1, "except with names") {
			f.Except = append(f.Except, sub.names(sub.args)...)
		}
	case "force_tcp":
		f.ForceTCP = sub.want(0, 0, "no argument")
	case "prefer_udp":
		f.PreferUDP = sub.want(0, 0, "no argument")
	case "failfast_all_unhealthy_upstreams":
		f.FailFast = sub.want(0, 0, "no argument")
	case "policy":
		if one("a word") {
			f.Policy = sub.choice(sub.args[0], name, "random", "round_robin", "sequential")
		}
	case "expire":
		sub.durationTo(&f.Expire, name, 0)
	case "read_timeout":
		sub.durationTo(&f.ReadTimeout, name, time.Millisecond)
	case "max_fails":
		sub.integerTo(&f.MaxFails, name)
	case "max_idle_conns":
		sub.integerTo(&f.MaxIdleConns, name)
	case "max_concurrent":
		sub.integerTo(&f.MaxConcurrent, name)
	case "health_check":
		sub.healthCheck(&f.HealthCheck)
	case "tls":
		if sub.want(0, 3, "tls [CERT KEY] [CA]") {
			f.TLS = tlsFiles(sub.texts())
		}
	case "tls_servername":
		if one("a name") {
			f.TLSServerName = sub.args[0].text
		}
	case "failover":
		if sub.want(1, -1, name+" with response codes") {
			f.Failover = append(f.Failover, sub.rcodes(sub.args)...)
		}
	case "max_connect_attempts", "max_age": // of CoreDNS's connection pool, which works in another way
		if one("a value") {
			sub.p.warnings = append(sub.p.warnings, &Problem{Pos: sub.pos, Directive: d.name, Text: name + " has no effect: upstream connections are few, pipelined and looked after"})
		}
	case "next", "next_on_nodata", "source_address":
		sub.fail("%s is not supported", name)
	case "doh_method", "resolver":
		sub.fail("%s is not supported: upstreams are plain DNS or DNS over TLS, by address", name)
	default:
		d.unknownOption(sub, name, "except", "force_tcp", "prefer_udp", "policy", "expire", "max_age", "max_idle_conns", "read_timeout",
			"max_fails", "max_concurrent", "health_check", "tls", "tls_servername", "failfast_all_unhealthy_upstreams", "failover")
	}
}

func (d *directive) durationTo(slot *time.Duration, name string, least time.Duration) {
	if d.want(1, 1, name+" with a duration") {
		*slot = d.duration(d.args[0], name, least, math.MaxInt64)
	}
}

func (d *directive) integerTo(slot *int, name string) {
	if d.want(1, 1, name+" with a number") {
		*slot = d.integer(d.args[0], name, 0, math.MaxInt32)
	}
}

// healthCheck reads DURATION [no_rec] [domain NAME].
func (d *directive) healthCheck(h *HealthCheck) {
	if !d.want(1, 4, "health_check DURATION [no_rec] [domain NAME]") {
		return
	}
	h.Interval = d.duration(d.args[0], "health_check", 0, math.MaxInt64)
	for args := d.args[1:]; len(args) > 0; args = args[1:] {
		switch {
		case args[0].text == "no_rec":
			h.NoRec = true
		case args[0].text == "domain" && len(args) > 1:
			if names := d.names(args[1:2]); len(names) == 1 {
				h.Domain = names[0]
			}
			args = args[1:]
		default:
			d.failAt(args[0], "health_check %q; %s", args[0].text, oneOf("no_rec", "domain NAME"))
		}
	}
}

// tlsFiles sorts the arguments as CoreDNS does: CA, or CERT KEY, or CERT KEY CA.
func tlsFiles(args []string) *TLS {
	switch len(args) {
	case 1:
		return &TLS{CA: args[0]}
	case 2:
		return &TLS{Cert: args[0], Key: args[1]}
	case 3:
		return &TLS{Cert: args[0], Key: args[1], CA: args[2]}
	}
	return &TLS{}
}

func (d *directive) targets(args []word) []Target {
	var out []Target
	seen := make(map[Target]bool)
	for _, a := range args {
		t, err := parseTarget(a.text)
		if err != nil {
			d.failAt(a, "upstream %v", err)
			continue
		}
		if !seen[t] {
			seen[t] = true
			out = append(out, t)
		}
	}
	if len(out) > maxTargets {
		d.fail("%d upstreams; allowed: up to %d", len(out), maxTargets)
	}
	return out
}

func parseTarget(s string) (Target, error) {
	bad := fmt.Errorf("%q is neither an IP address nor a file; allowed: IP[:port], tls://IP[:port][%%name], or a path such as /etc/resolv.conf", s)
	if s == pillarCluster { // only with KeepUnknown
		return Target{Placeholder: s}, nil
	}
	scheme, rest, found := strings.Cut(s, "://")
	if !found {
		scheme, rest = "dns", s
	}
	switch scheme {
	case "dns":
		if addr, err := parseAddrPort(rest, 53); err == nil {
			return Target{Addr: addr}, nil
		}
		if !found && strings.Contains(s, "/") && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' }) {
			return Target{File: s}, nil
		}
		return Target{}, bad
	case "tls":
		t := Target{TLS: true}
		addr, err := parseAddrPort(rest, 853)
		if err != nil { // IP%name, IP%name:port: the name is the certificate's
			rest, t.ServerName = splitServerName(rest)
			if addr, err = parseAddrPort(rest, 853); err != nil {
				return Target{}, bad
			}
			if _, err := parseName(t.ServerName); err != nil {
				return Target{}, fmt.Errorf("%q: TLS name %w", s, err)
			}
		} else if z := addr.Addr().Zone(); z != "" && !addr.Addr().IsLinkLocalUnicast() {
			t.ServerName, addr = z, netip.AddrPortFrom(addr.Addr().WithZone(""), addr.Port())
		}
		t.Addr = addr
		return t, nil
	}
	return Target{}, fmt.Errorf("%q: protocol %s is not supported; allowed: dns://, tls://", s, scheme)
}

// splitServerName takes the TLS name out of IP%name or IP%name:port, also with the address in brackets.
func splitServerName(s string) (rest, name string) {
	host, name, ok := strings.Cut(s, "%")
	if !ok {
		return s, ""
	}
	name, port, hasPort := strings.Cut(name, ":")
	if name, ok := strings.CutSuffix(name, "]"); ok {
		return rejoin(strings.TrimPrefix(host, "["), port, hasPort), name
	}
	return rejoin(host, port, hasPort), name
}

func rejoin(host, port string, hasPort bool) string {
	if hasPort {
		return net.JoinHostPort(host, port)
	}
	return host
}

// parseAddrPort reads an address with or without a port; an IPv6 address with a port is in brackets.
func parseAddrPort(s string, port uint16) (netip.AddrPort, error) {
	host := s
	if h, p, err := net.SplitHostPort(s); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return netip.AddrPort{}, fmt.Errorf("port %q; allowed: 1 to 65535", p)
		}
		host, port = h, uint16(n)
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if !addr.IsLinkLocalUnicast() && addr.Is6() && addr.Zone() != "" && !strings.Contains(addr.Zone(), ".") {
		addr = addr.WithZone("") // RFC 4007 s6: only link-local addresses need one
	}
	return netip.AddrPortFrom(addr.Unmap(), port), nil
}
