package corefile

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Parse reads a Corefile. name is the file's name for messages and for relative imports. The error joins every problem that
// was found, each a *Problem; with an error the Config is nil.
func Parse(name, text string, opts Options) (*Config, error) {
	opts.fillDefaults()
	r := &reader{readFile: opts.ReadFile, env: opts.Env, snippets: make(map[string][]token)}
	raw, err := r.read(name, text)
	if err != nil {
		return nil, err
	}
	p := &parser{opts: &opts}
	cfg := &Config{Files: r.files}
	for _, b := range raw {
		cfg.Blocks = append(cfg.Blocks, p.block(b))
	}
	if len(raw) == 0 {
		p.problems.add(Pos{File: name}, "", "no server block: the file is empty")
	}
	p.checkOverlaps(cfg.Blocks)
	p.checkShared(cfg.Blocks)
	if err := p.problems.err(); err != nil {
		return nil, err
	}
	p.addStubs(cfg)
	cfg.Warnings = slices.Concat(r.warnings, p.warnings)
	return cfg, nil
}

func (o *Options) fillDefaults() {
	if o.Domain == "" {
		o.Domain = "cluster.local"
	}
	if o.ResolvConf == "" {
		o.ResolvConf = "/etc/resolv.conf"
	}
	if o.Port == 0 {
		o.Port = 53
	}
	if o.Env == nil {
		o.Env = func(string) (string, bool) { return "", false }
	}
	if o.ReadFile == nil {
		o.ReadFile = os.ReadFile
	}
}

// parser gives meaning to the lines the reader grouped.
type parser struct {
	opts     *Options
	problems problems
	warnings []*Problem
}

func (p *parser) block(raw block) *Block {
	b := &Block{Pos: raw.keys[0].pos}
	for _, k := range raw.keys {
		words, err := p.opts.fill(k)
		if err != nil {
			p.problems.add(k.pos, "", "%v", err)
		}
		for _, w := range words {
			zones, err := parseKey(w.text, p.opts.Port)
			if err != nil {
				p.problems.add(k.pos, "", "zone %v", err)
			}
			b.Zones = append(b.Zones, zones...)
		}
	}
	for _, l := range raw.lines {
		d := p.directive(l)
		if !d.apply(b) {
			p.problems.add(d.pos, "", "unknown directive %q; %s", d.name, oneOf(directives()...))
		}
	}
	return b
}

// directive is a line with its variables and placeholders replaced.
type directive struct {
	p    *parser
	name string // of the directive, also in its options: it stands in messages
	pos  Pos
	args []word
	sub  []*directive
	open bool
}

func (p *parser) directive(l line) *directive {
	d := &directive{p: p, pos: l.pos(), open: l.open}
	d.name = l.words[0].text
	for i, t := range l.words {
		words, err := p.opts.fill(t)
		if err != nil {
			p.problems.add(t.pos, l.words[0].text, "%v", err)
			d.args = append(d.args, word{text: t.text, pos: t.pos, pillar: "?"}) // keeps the count of arguments right
			continue
		}
		if i == 0 {
			if len(words) > 0 {
				d.name = words[0].text
			}
			continue
		}
		d.args = append(d.args, words...)
	}
	for _, s := range l.sub {
		d.sub = append(d.sub, p.directive(s))
	}
	return d
}

// directives lists what a block may hold, in the order of the canonical text.
func directives() []string {
	return []string{"errors", "log", "debug", "reload", "loop", "bind", "timeouts", "bufsize", "prometheus", "health", "ready",
		"pprof", "cache", "search_cut", "loadbalance", "rewrite", "hosts", "template", "whoami", "forward", "import"}
}

// apply stores what the directive says in b. It reports false when there is no such directive.
func (d *directive) apply(b *Block) bool {
	switch d.name {
	case "errors":
		once(d, &b.Errors, d.errors)
	case "log":
		b.Log = append(b.Log, d.log())
	case "debug":
		d.flag(&b.Debug)
	case "reload":
		once(d, &b.Reload, d.reload)
	case "loop":
		d.flag(&b.Loop)
	case "bind":
		for _, t := range d.bind() {
			if !slices.Contains(b.Bind, t) {
				b.Bind = append(b.Bind, t)
			}
		}
	case "timeouts":
		once(d, &b.Timeouts, d.timeouts)
	case "bufsize":
		d.bufsize(b)
	case "prometheus":
		once(d, &b.Prometheus, d.prometheus)
	case "health":
		once(d, &b.Health, d.health)
	case "ready":
		once(d, &b.Ready, d.ready)
	case "pprof":
		once(d, &b.PProf, d.pprof)
	case "cache":
		once(d, &b.Cache, d.cache)
	case "search_cut":
		once(d, &b.SearchCut, d.searchCut)
	case "loadbalance":
		once(d, &b.LoadBalance, d.loadbalance)
	case "rewrite":
		b.Rewrites = append(b.Rewrites, d.rewrites()...)
	case "hosts":
		once(d, &b.Hosts, d.hosts)
	case "template":
		b.Templates = append(b.Templates, d.template())
	case "whoami":
		d.flag(&b.WhoAmI)
	case "forward":
		f := d.forward()
		d.checkReachable(b, f)
		b.Forward = append(b.Forward, f)
	default:
		return false
	}
	return true
}

// once stores what parse returns, and complains when the directive was there before.
func once[T any](d *directive, slot **T, parse func() *T) {
	if *slot != nil {
		d.fail("may stand only once in a server block")
		return
	}
	*slot = parse()
}

func (d *directive) fail(format string, args ...any) {
	d.p.problems.add(d.pos, d.name, format, args...)
}

func (d *directive) failAt(w word, format string, args ...any) {
	if w.pillar != "?" { // reported already
		d.p.problems.add(w.pos, d.name, format, args...)
	}
}

// option starts the handling of an option inside braces: what it is called, and messages under the directive's name.
func (d *directive) option(sub *directive) string {
	name := sub.name
	sub.name = d.name
	if sub.open {
		sub.fail("%s takes no braces", name)
	}
	return name
}

func (d *directive) unknownOption(sub *directive, name string, allowed ...string) {
	sub.fail("unknown option %q; %s", name, oneOf(allowed...))
}

// noBlock complains about braces behind a directive that has no options.
func (d *directive) noBlock() {
	if d.open {
		d.fail("takes no braces")
	}
}

// want checks the number of arguments. what names them for the message.
func (d *directive) want(least, most int, what string) bool {
	if n := len(d.args); n >= least && (most < 0 || n <= most) {
		return true
	}
	got := "nothing"
	if len(d.args) > 0 {
		got = fmt.Sprintf("%q", strings.Join(d.texts(), " "))
	}
	d.fail("%s expected, %s given", what, got)
	return false
}

func (d *directive) texts() []string {
	var out []string
	for _, w := range d.args {
		out = append(out, w.text)
	}
	return out
}

// flag handles a directive without arguments.
func (d *directive) flag(b *bool) {
	d.noBlock()
	d.want(0, 0, "no argument")
	*b = true
}

// names reads arguments as domain names or networks. A scheme and a port, as the keys of a block have, mean nothing here.
func (d *directive) names(args []word) []string {
	var out []string
	for _, a := range args {
		zones, err := parseKey(a.text, d.p.opts.Port)
		if err != nil {
			d.failAt(a, "name %v", err)
			continue
		}
		for _, z := range zones {
			out = append(out, z.Name)
		}
	}
	return out
}
