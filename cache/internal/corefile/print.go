package corefile

import (
	"strconv"
	"strings"
	"time"
	"unicode"
)

// String gives the configuration as a Corefile: no variable, placeholder, snippet or import is left, every default is
// written out, names are canonical. Parsed again it gives the same configuration.
func (c *Config) String() string {
	var p printer
	for i, b := range c.Blocks {
		if i > 0 {
			p.b.WriteByte('\n')
		}
		p.block(b)
	}
	return p.b.String()
}

// String gives one block as a Corefile.
func (b *Block) String() string {
	var p printer
	p.block(b)
	return p.b.String()
}

type printer struct {
	b     strings.Builder
	depth int
}

func (p *printer) line(words ...string) {
	p.b.WriteString(strings.Repeat("    ", p.depth))
	for i, w := range words {
		if i > 0 {
			p.b.WriteByte(' ')
		}
		p.b.WriteString(quote(w))
	}
	p.b.WriteByte('\n')
}

// braces writes a directive and, when inner writes any line, its braces.
func (p *printer) braces(words []string, inner func(*printer)) {
	in := printer{depth: p.depth + 1}
	inner(&in)
	p.line(words...)
	if in.b.Len() == 0 {
		return
	}
	text := strings.TrimSuffix(p.b.String(), "\n") + " {\n" + in.b.String()
	p.b.Reset()
	p.b.WriteString(text + strings.Repeat("    ", p.depth) + "}\n")
}

// quote puts a word in quotes where the lexer would otherwise split it.
func quote(s string) string {
	special := func(r rune) bool { return unicode.IsSpace(r) || r == '#' }
	if s != "" && s[0] != '"' && !strings.ContainsFunc(s, special) {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
}

func (p *printer) block(b *Block) {
	var keys []string
	for _, z := range b.Zones {
		keys = append(keys, z.Name+":"+strconv.Itoa(int(z.Port)))
	}
	in := printer{depth: 1}
	for _, name := range directives() {
		in.directive(b, name)
	}
	p.line(append(keys, "{")...)
	p.b.WriteString(in.b.String() + "}\n")
}

func (p *printer) directive(b *Block, name string) {
	switch name {
	case "errors":
		ifSet(b.Errors, p.errors)
	case "log":
		for _, r := range b.Log {
			p.log(r)
		}
	case "debug":
		p.flag(b.Debug, name)
	case "reload":
		ifSet(b.Reload, func(r *Reload) { p.line(name, dur(r.Interval), dur(r.Jitter)) })
	case "loop":
		p.flag(b.Loop, name)
	case "bind":
		p.bind(b.Bind)
	case "timeouts":
		ifSet(b.Timeouts, p.timeouts)
	case "bufsize":
		if b.BufSize > 0 {
			p.line(name, strconv.Itoa(b.BufSize))
		}
	case "prometheus":
		ifSet(b.Prometheus, func(h *HTTP) { p.line(name, h.Addr) })
	case "health":
		ifSet(b.Health, func(h *Health) {
			p.braces([]string{name, h.Addr}, func(p *printer) { p.durOption("lameduck", h.Lameduck, 0) })
		})
	case "ready":
		ifSet(b.Ready, func(r *Ready) {
			p.braces([]string{name, r.Addr}, func(p *printer) { p.flag(r.Continuous, "monitor", "continuously") })
		})
	case "pprof":
		ifSet(b.PProf, func(r *PProf) {
			p.braces([]string{name, r.Addr}, func(p *printer) { p.intOption("block", r.Block, 0) })
		})
	case "cache":
		ifSet(b.Cache, p.cache)
	case "search_cut":
		ifSet(b.SearchCut, func(s *SearchCut) { p.line(append([]string{name}, s.Zones...)...) })
	case "loadbalance":
		ifSet(b.LoadBalance, func(l *LoadBalance) { p.line(name, l.Policy) })
	case "rewrite":
		for _, r := range b.Rewrites {
			p.rewrite(r)
		}
	case "hosts":
		ifSet(b.Hosts, p.hosts)
	case "template":
		for _, t := range b.Templates {
			p.template(t)
		}
	case "whoami":
		p.flag(b.WhoAmI, name)
	case "forward":
		for _, f := range b.Forward {
			p.forward(f)
		}
	}
}

func ifSet[T any](v *T, print func(*T)) {
	if v != nil {
		print(v)
	}
}

func (p *printer) flag(on bool, words ...string) {
	if on {
		p.line(words...)
	}
}

func (p *printer) list(name string, values []string) {
	if len(values) > 0 {
		p.line(append([]string{name}, values...)...)
	}
}

func (p *printer) durOption(name string, d, unset time.Duration) {
	if d != unset {
		p.line(name, dur(d))
	}
}

func (p *printer) intOption(name string, n, unset int) {
	if n != unset {
		p.line(name, strconv.Itoa(n))
	}
}

// dur writes a duration without zero minutes and seconds: 1h, not 1h0m0s.
func dur(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func secs(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

func (p *printer) errors(e *Errors) {
	p.braces([]string{"errors"}, func(p *printer) {
		p.flag(e.Stacktrace, "stacktrace")
		for _, c := range e.Consolidate {
			words := []string{"consolidate", dur(c.Period), c.Pattern, c.Level}
			if c.ShowFirst {
				words = append(words, "show_first")
			}
			p.line(words...)
		}
	})
}

func (p *printer) log(r LogRule) {
	words := append([]string{"log"}, r.Names...)
	if r.Format != "" {
		words = append(words, r.Format)
	}
	p.braces(words, func(p *printer) { p.list("class", r.Classes) })
}

func (p *printer) bind(binds []Bind) {
	var addrs, except []string
	for _, b := range binds {
		if b.Except {
			except = append(except, b.String())
		} else {
			addrs = append(addrs, b.String())
		}
	}
	if len(addrs) > 0 {
		p.braces(append([]string{"bind"}, addrs...), func(p *printer) { p.list("except", except) })
	}
}

func (p *printer) timeouts(t *Timeouts) {
	p.braces([]string{"timeouts"}, func(p *printer) {
		p.durOption("read", t.Read, 0)
		p.durOption("write", t.Write, 0)
		p.durOption("idle", t.Idle, 0)
	})
}

func (p *printer) cache(c *Cache) {
	p.braces(append([]string{"cache"}, c.Zones...), func(p *printer) {
		p.line("success", strconv.Itoa(c.Success.Capacity), secs(c.Success.MaxTTL), secs(c.Success.MinTTL))
		p.line("denial", strconv.Itoa(c.Denial.Capacity), secs(c.Denial.MaxTTL), secs(c.Denial.MinTTL))
		p.line("servfail", dur(c.ServFail))
		if c.Prefetch.Amount > 0 {
			p.line("prefetch", strconv.Itoa(c.Prefetch.Amount), dur(c.Prefetch.Duration), strconv.Itoa(c.Prefetch.Percentage)+"%")
		}
		if s := c.ServeStale; s != nil {
			words := []string{"serve_stale", dur(s.For), "immediate"}
			if s.Verify {
				words[2] = "verify"
				words = append(words, dur(s.VerifyTimeout))
			}
			p.line(append(words, dur(s.TTL), dur(s.Recheck))...)
		}
		p.flag(c.PreferPositive, "serve_stale_policy", "prefer_positive")
		if len(c.Success.Disabled) > 0 {
			p.line(append([]string{"disable", "success"}, c.Success.Disabled...)...)
		}
		if len(c.Denial.Disabled) > 0 {
			p.line(append([]string{"disable", "denial"}, c.Denial.Disabled...)...)
		}
		p.flag(c.KeepTTL, "keepttl")
	})
}

func (p *printer) rewrite(r *Rewrite) {
	words := []string{"rewrite", "stop", "name", r.Match, r.From, r.To}
	if r.Continue {
		words[1] = "continue"
	}
	if r.Auto {
		words = append(words, "answer", "auto")
	}
	for _, a := range r.Answers {
		kind := "name"
		if a.Value {
			kind = "value"
		}
		words = append(words, "answer", kind, a.From, a.To)
	}
	p.line(words...)
}

func (p *printer) hosts(h *Hosts) {
	p.braces(append([]string{"hosts", h.File}, h.Zones...), func(p *printer) {
		for _, l := range h.Inline {
			p.line(strings.Fields(l)...)
		}
		p.line("ttl", secs(h.TTL))
		p.line("reload", dur(h.Reload))
		p.flag(h.NoReverse, "no_reverse")
		p.list("fallthrough", h.Fallthrough)
		p.flag(h.FallthroughUnsupported, "fallthrough_unsupported")
	})
}

func (p *printer) template(t *Template) {
	p.braces(append([]string{"template", t.Class, t.Type}, t.Zones...), func(p *printer) {
		p.list("match", t.Match)
		for _, s := range []struct {
			name    string
			records []string
		}{{"answer", t.Answer}, {"additional", t.Additional}, {"authority", t.Authority}} {
			for _, r := range s.records {
				p.line(s.name, r)
			}
		}
		p.line("rcode", t.Rcode)
		if t.EDE != nil {
			p.line("ederror", strconv.Itoa(int(t.EDE.Code)), t.EDE.Text)
		}
		p.list("fallthrough", t.Fallthrough)
	})
}
