package corefile

import (
	"math"
	"regexp"
	"time"
)

// reload [INTERVAL [JITTER]]
func (d *directive) reload() *Reload {
	d.noBlock()
	d.want(0, 2, "an interval and a jitter at most")
	r := &Reload{Interval: 30 * time.Second, Jitter: 15 * time.Second}
	if len(d.args) > 0 {
		r.Interval = d.duration(d.args[0], "interval", 2*time.Second, math.MaxInt64)
	}
	if len(d.args) > 1 {
		if r.Jitter = d.duration(d.args[1], "jitter", 0, math.MaxInt64); r.Jitter > 0 && r.Jitter < time.Second {
			d.failAt(d.args[1], "jitter %q; allowed: 0 or at least 1s", d.args[1].text)
		}
	}
	r.Jitter = min(r.Jitter, r.Interval/2)
	return r
}

// prometheus [ADDRESS] { runtime_metrics }
func (d *directive) prometheus() *HTTP {
	h := &HTTP{Addr: "localhost:9153"}
	if d.want(0, 1, "one address at most") && len(d.args) == 1 {
		h.Addr = d.listenAddr(d.args[0])
	}
	for _, sub := range d.sub {
		switch name := d.option(sub); name {
		case "runtime_metrics": // the Go metrics are always exported
			sub.want(0, 0, "no argument")
		case "tls":
			sub.fail("tls is not supported: metrics are served over plain HTTP")
		default:
			d.unknownOption(sub, name, "runtime_metrics")
		}
	}
	return h
}

// health [ADDRESS] { lameduck DURATION }
func (d *directive) health() *Health {
	h := &Health{Addr: ":8080"}
	if d.want(0, 1, "one address at most") && len(d.args) == 1 {
		h.Addr = d.listenAddr(d.args[0])
	}
	for _, sub := range d.sub {
		if name := d.option(sub); name != "lameduck" {
			d.unknownOption(sub, name, "lameduck")
		} else if sub.want(1, 1, "lameduck with a duration") {
			h.Lameduck = sub.duration(sub.args[0], "lameduck", 0, math.MaxInt64)
		}
	}
	return h
}

// ready [ADDRESS] { monitor until-ready|continuously }
func (d *directive) ready() *Ready {
	r := &Ready{Addr: ":8181"}
	if d.want(0, 1, "one address at most") && len(d.args) == 1 {
		r.Addr = d.listenAddr(d.args[0])
	}
	for _, sub := range d.sub {
		if name := d.option(sub); name != "monitor" {
			d.unknownOption(sub, name, "monitor")
		} else if sub.want(1, 1, "monitor with until-ready or continuously") {
			r.Continuous = sub.choice(sub.args[0], "monitor", "until-ready", "continuously") == "continuously"
		}
	}
	return r
}

// pprof [ADDRESS] { block [RATE] }
func (d *directive) pprof() *PProf {
	p := &PProf{Addr: "localhost:6053"}
	if d.want(0, 1, "one address at most") && len(d.args) == 1 {
		p.Addr = d.listenAddr(d.args[0])
	}
	for _, sub := range d.sub {
		if name := d.option(sub); name != "block" {
			d.unknownOption(sub, name, "block")
			continue
		}
		p.Block = 1
		if sub.want(0, 1, "one rate at most") && len(sub.args) == 1 {
			p.Block = sub.integer(sub.args[0], "block rate", 1, math.MaxInt32)
		}
	}
	return p
}

// errors [stdout] { stacktrace; consolidate DURATION REGEXP [LEVEL] [show_first] }
func (d *directive) errors() *Errors {
	e := &Errors{}
	if d.want(0, 1, "nothing or stdout") && len(d.args) == 1 {
		d.choice(d.args[0], "log file", "stdout")
	}
	for _, sub := range d.sub {
		switch name := d.option(sub); name {
		case "stacktrace":
			sub.want(0, 0, "no argument")
			e.Stacktrace = true
		case "consolidate":
			if sub.want(2, 4, "consolidate DURATION REGEXP [LEVEL] [show_first]") {
				e.Consolidate = append(e.Consolidate, sub.consolidate())
			}
		default:
			d.unknownOption(sub, name, "stacktrace", "consolidate")
		}
	}
	return e
}

func (d *directive) consolidate() Consolidate {
	c := Consolidate{Period: d.duration(d.args[0], "period", time.Millisecond, math.MaxInt64), Level: "error"}
	c.Pattern = d.regexp(d.args[1])
	rest := d.args[2:]
	if n := len(rest); n > 0 && rest[n-1].text == "show_first" {
		c.ShowFirst, rest = true, rest[:n-1]
	}
	if len(rest) > 0 {
		c.Level = d.choice(rest[0], "level", "warning", "error", "info", "debug")
	}
	if len(rest) > 1 {
		d.failAt(rest[1], "unexpected %q; the order is DURATION REGEXP [LEVEL] [show_first]", rest[1].text)
	}
	return c
}

// maxPattern bounds regular expressions, whose compiled form is many times larger.
const maxPattern = 10000

func (d *directive) regexp(w word) string {
	if len(w.text) > maxPattern {
		d.failAt(w, "a regular expression of %d characters; allowed: up to %d", len(w.text), maxPattern)
		return ""
	}
	if _, err := regexp.Compile(w.text); err != nil {
		d.failAt(w, "regular expression %q: %v", w.text, err)
	}
	return w.text
}

// log [NAMES...] [FORMAT] { class CLASSES... }
func (d *directive) log() LogRule {
	r := LogRule{Names: []string{"."}, Classes: []string{"all"}}
	args := d.args
	// A format is what holds a brace and, as in CoreDNS, does not stand alone.
	if n := len(args); n > 1 && containsBrace(args[n-1].text) {
		r.Format, args = args[n-1].text, args[:n-1]
	}
	if len(args) > 0 {
		r.Names = d.names(args)
	}
	for _, sub := range d.sub {
		if name := d.option(sub); name != "class" {
			d.unknownOption(sub, name, "class")
			continue
		}
		if !sub.want(1, -1, "class with denial, error, success or all") {
			continue
		}
		r.Classes = nil
		for _, a := range sub.args {
			r.Classes = append(r.Classes, sub.choice(a, "class", "all", "denial", "error", "success"))
		}
	}
	return r
}

func containsBrace(s string) bool {
	for i := range len(s) {
		if s[i] == '{' {
			return true
		}
	}
	return false
}

// bufsize [SIZE]
func (d *directive) bufsize(b *Block) {
	d.noBlock()
	if b.BufSize != 0 {
		d.fail("may stand only once in a server block")
	}
	b.BufSize = 1232
	if d.want(0, 1, "one size at most") && len(d.args) == 1 {
		b.BufSize = d.integer(d.args[0], "size", 512, 4096)
	}
}

// timeouts { read DURATION; write DURATION; idle DURATION; maxtcpqueries N }
func (d *directive) timeouts() *Timeouts {
	t := &Timeouts{}
	d.want(0, 0, "no argument")
	if len(d.sub) == 0 {
		d.fail("needs at least one of read, write, idle, maxtcpqueries in braces")
	}
	for _, sub := range d.sub {
		name := d.option(sub)
		if !sub.want(1, 1, name+" with one value") {
			continue
		}
		var slot *time.Duration
		switch name {
		case "read":
			slot = &t.Read
		case "write":
			slot = &t.Write
		case "idle":
			slot = &t.Idle
		case "maxtcpqueries":
			d.p.warnings = append(d.p.warnings, &Problem{Pos: sub.pos, Directive: d.name, Text: "maxtcpqueries has no effect: a TCP connection may ask as often as it likes, so many questions at a time"})
			continue
		default:
			d.unknownOption(sub, name, "read", "write", "idle", "maxtcpqueries")
			continue
		}
		a := sub.args[0]
		if _, err := time.ParseDuration(a.text); err != nil && isDigits(a.text) {
			a.text += "s" // a bare number is seconds here
		}
		*slot = sub.duration(a, name, time.Second, 24*time.Hour)
	}
	return t
}

func isDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

// search_cut [ZONES...]
func (d *directive) searchCut() *SearchCut {
	d.noBlock()
	return &SearchCut{Zones: d.names(d.args)}
}

// checkShared finds settings of the whole process that blocks give differently.
func (p *parser) checkShared(blocks []*Block) {
	var duck *Block
	for _, b := range blocks {
		if b.Health == nil {
			continue
		}
		if duck != nil && duck.Health.Addr == b.Health.Addr && duck.Health.Lameduck != b.Health.Lameduck {
			p.problems.add(b.Pos, "health", "lameduck %v for %s, but %v in the block of line %d", b.Health.Lameduck, b.Health.Addr, duck.Health.Lameduck, duck.Pos.Line)
		}
		duck = b
	}
}
