package corefile

import (
	"slices"
	"strconv"
)

func (p *printer) forward(f *Forward) {
	for _, from := range f.From {
		words := []string{"forward", from}
		for _, t := range f.Targets {
			words = append(words, t.String())
		}
		p.braces(words, func(p *printer) { p.forwardOptions(f) })
	}
}

func (p *printer) forwardOptions(f *Forward) {
	p.list("except", f.Except)
	p.flag(f.ForceTCP, "force_tcp")
	p.flag(f.PreferUDP, "prefer_udp")
	p.line("policy", f.Policy)
	p.line("expire", dur(f.Expire))
	p.intOption("max_idle_conns", f.MaxIdleConns, 0)
	p.line("read_timeout", dur(f.ReadTimeout))
	p.line("max_fails", strconv.Itoa(f.MaxFails))
	p.intOption("max_concurrent", f.MaxConcurrent, 0)
	check := []string{"health_check", dur(f.HealthCheck.Interval)}
	if f.HealthCheck.NoRec {
		check = append(check, "no_rec")
	}
	if f.HealthCheck.Domain != "." {
		check = append(check, "domain", f.HealthCheck.Domain)
	}
	p.line(check...)
	if t := f.TLS; t != nil {
		p.line(slices.DeleteFunc([]string{"tls", t.Cert, t.Key, t.CA}, func(s string) bool { return s == "" })...)
	}
	if f.TLSServerName != "" {
		p.line("tls_servername", f.TLSServerName)
	}
	p.flag(f.FailFast, "failfast_all_unhealthy_upstreams")
	p.list("failover", f.Failover)
}

// String writes the target as a Corefile names it.
func (t Target) String() string {
	switch {
	case t.Placeholder != "":
		return t.Placeholder
	case t.File != "":
		return t.File
	case !t.TLS:
		return hostPort(t.Addr, 53)
	case t.ServerName == "":
		return "tls://" + hostPort(t.Addr, 853)
	}
	s := "tls://" + t.Addr.Addr().WithZone("").String() + "%" + t.ServerName
	if p := t.Addr.Port(); p != 853 {
		s += ":" + strconv.Itoa(int(p))
	}
	return s
}
