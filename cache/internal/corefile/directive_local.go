package corefile

import (
	"math"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// hosts [FILE [ZONES...]] { [INLINE]; ttl SECONDS; no_reverse; reload DURATION; fallthrough [ZONES...]; fallthrough_unsupported }
func (d *directive) hosts() *Hosts {
	h := &Hosts{Pos: d.pos, File: "/etc/hosts", TTL: time.Hour, Reload: 5 * time.Second}
	if len(d.args) > 0 {
		h.File = d.args[0].text
		h.Zones = d.names(d.args[1:])
	}
	for _, sub := range d.sub {
		switch name := d.option(sub); name {
		case "ttl":
			if sub.want(1, 1, "ttl with seconds") {
				h.TTL = time.Duration(sub.integer(sub.args[0], "ttl", 1, 65535)) * time.Second
			}
		case "reload":
			if sub.want(1, 1, "reload with a duration") {
				h.Reload = sub.duration(sub.args[0], "reload", 0, math.MaxInt64)
			}
		case "no_reverse":
			h.NoReverse = sub.want(0, 0, "no argument")
		case "fallthrough":
			h.Fallthrough = sub.fallthroughZones()
		case "fallthrough_unsupported":
			h.FallthroughUnsupported = sub.want(0, 0, "no argument")
		default:
			if _, err := netip.ParseAddr(name); err != nil {
				d.unknownOption(sub, name, "ADDRESS NAME...", "ttl", "reload", "no_reverse", "fallthrough", "fallthrough_unsupported")
				continue
			}
			if sub.want(1, -1, "names after the address "+name) {
				sub.names(sub.args) // as checks
				h.Inline = append(h.Inline, name+" "+strings.Join(sub.texts(), " "))
			}
		}
	}
	if h.FallthroughUnsupported && h.Fallthrough == nil {
		d.fail("fallthrough_unsupported needs fallthrough")
	}
	return h
}

// fallthroughZones reads the zones of a fallthrough; none are all.
func (d *directive) fallthroughZones() []string {
	if len(d.args) == 0 {
		return []string{"."}
	}
	return d.names(d.args)
}

// template CLASS TYPE [ZONES...] { match REGEXP...; answer RR; additional RR; authority RR; rcode CODE; ederror CODE [TEXT]; fallthrough [ZONES...] }
func (d *directive) template() *Template {
	t := &Template{Pos: d.pos, Rcode: "NOERROR"}
	if d.want(2, -1, "a class and a type") {
		t.Class = d.choice(d.args[0], "class", "IN", "CH", "HS", "NONE", "ANY")
		if t.Type = strings.ToUpper(d.args[1].text); !isTypeName(t.Type) {
			d.failAt(d.args[1], "type %q; allowed: the name of a record type such as A, AAAA, PTR, ANY or TYPE65", d.args[1].text)
		}
		t.Zones = d.names(d.args[2:])
	}
	for _, sub := range d.sub {
		switch name := d.option(sub); name {
		case "match":
			if sub.want(1, -1, "match with regular expressions") {
				for _, a := range sub.args {
					t.Match = append(t.Match, sub.regexp(a))
				}
			}
		case "answer":
			t.Answer = append(t.Answer, sub.recordTemplates(name)...)
		case "additional":
			t.Additional = append(t.Additional, sub.recordTemplates(name)...)
		case "authority":
			t.Authority = append(t.Authority, sub.recordTemplates(name)...)
		case "rcode":
			if sub.want(1, 1, "rcode with a response code") {
				if codes := sub.rcodes(sub.args); len(codes) == 1 {
					t.Rcode = codes[0]
				}
			}
		case "ederror":
			if sub.want(1, 2, "ederror CODE [TEXT]") {
				t.EDE = &EDE{Code: uint16(sub.integer(sub.args[0], name, 0, math.MaxUint16))}
				if len(sub.args) > 1 {
					t.EDE.Text = sub.args[1].text
				}
			}
		case "fallthrough":
			t.Fallthrough = sub.fallthroughZones()
		case "upstream": // without effect in CoreDNS as well, accepted for old files
		case "var", "expr":
			sub.fail("%s is not supported: templates know .Name, .Class, .Type, .Zone, .Match, .Group, .Question, .Remote", name)
		default:
			d.unknownOption(sub, name, "match", "answer", "additional", "authority", "rcode", "ederror", "fallthrough")
		}
	}
	return t
}

func (d *directive) recordTemplates(name string) []string {
	d.want(1, -1, name+" with a record")
	for _, a := range d.args {
		funcs := template.FuncMap{"parseInt": strconv.ParseUint}
		if _, err := template.New(name).Funcs(funcs).Parse(a.text); err != nil {
			d.failAt(a, "%v", err)
		}
	}
	return d.texts()
}

// isTypeName allows the form of type names; whether one exists is known to the room that answers.
func isTypeName(s string) bool {
	return s != "" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == ""
}

// rewrite [continue|stop] name [exact|prefix|suffix|substring|regex] FROM TO [answer auto|name FROM TO|value FROM TO]...,
// or several such lines in braces
func (d *directive) rewrites() []*Rewrite {
	if !d.open {
		if r := d.rewrite(d.args, false); r != nil {
			return []*Rewrite{r}
		}
		return nil
	}
	keepOn := false
	if d.want(0, 1, "continue or stop before the brace") && len(d.args) == 1 {
		keepOn = d.choice(d.args[0], "mode", "continue", "stop") == "continue"
	}
	var out []*Rewrite
	for _, sub := range d.sub {
		args := append([]word{{text: sub.name, pos: sub.pos}}, sub.args...)
		d.option(sub)
		if r := sub.rewrite(args, keepOn); r != nil {
			out = append(out, r)
		}
	}
	return out
}

func (d *directive) rewrite(args []word, keepOn bool) *Rewrite {
	r := &Rewrite{Pos: d.pos, Continue: keepOn, Match: "exact"}
	if len(args) > 0 && (strings.EqualFold(args[0].text, "continue") || strings.EqualFold(args[0].text, "stop")) {
		r.Continue = strings.EqualFold(args[0].text, "continue")
		args = args[1:]
	}
	if len(args) < 3 || !strings.EqualFold(args[0].text, "name") {
		d.fail("allowed: [continue|stop] name [exact|prefix|suffix|substring|regex] FROM TO [answer auto|answer name FROM TO|answer value FROM TO]")
		return nil
	}
	if args = args[1:]; len(args) > 2 {
		r.Match = d.choice(args[0], "match", "exact", "prefix", "suffix", "substring", "regex")
		args = args[1:]
	}
	if len(args) < 2 {
		d.fail("FROM and TO expected after %s", r.Match)
		return nil
	}
	r.From, r.To = d.rewritePair(r.Match, args[0], args[1])
	d.answerRewrites(r, args[2:])
	return r
}

// rewritePair brings FROM and TO into the form they are compared in: names in lower case, whole names absolute.
func (d *directive) rewritePair(match string, from, to word) (string, string) {
	f, t := strings.ToLower(from.text), strings.ToLower(to.text)
	switch match {
	case "regex":
		f = d.regexp(from)
		t = absolute(t)
		d.groups(from, f, to, t)
	case "exact", "suffix":
		f, t = absolute(f), absolute(t)
	}
	return f, t
}

func absolute(s string) string {
	if strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

// groups checks that a replacement uses no more groups than its expression has.
func (d *directive) groups(from word, pattern string, to word, replacement string) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return // reported
	}
	for n := re.NumSubexp() + 1; n <= 100; n++ {
		if strings.Contains(replacement, "{"+strconv.Itoa(n)+"}") {
			d.failAt(to, "%q uses {%d}, but %q has %d groups", to.text, n, from.text, re.NumSubexp())
			return
		}
	}
}

func (d *directive) answerRewrites(r *Rewrite, args []word) {
	names := 0
	for len(args) > 0 {
		if args[0].text == "answer" {
			if args = args[1:]; len(args) == 0 {
				d.fail("answer needs auto, name FROM TO or value FROM TO")
				return
			}
		}
		switch kind := args[0].text; {
		case kind == "auto":
			r.Auto, args = true, args[1:]
		case (kind == "name" || kind == "value") && len(args) >= 3:
			a := AnswerRewrite{Value: kind == "value", From: d.regexp(args[1]), To: absolute(strings.ToLower(args[2].text))}
			d.groups(args[1], a.From, args[2], a.To)
			r.Answers = append(r.Answers, a)
			if args = args[3:]; !a.Value {
				names++
			}
		default:
			d.failAt(args[0], "answer %q; %s", kind, oneOf("auto", "name FROM TO", "value FROM TO"))
			return
		}
	}
	if r.Auto && names > 0 {
		d.fail("answer auto and answer name exclude each other")
	}
}

// loadbalance [round_robin]
func (d *directive) loadbalance() *LoadBalance {
	l := &LoadBalance{Policy: "round_robin"}
	if len(d.args) > 0 {
		d.choice(d.args[0], "policy", l.Policy)
		d.want(0, 1, "one policy at most")
	}
	for _, sub := range d.sub {
		name := d.option(sub)
		sub.fail("%s is not supported", name)
	}
	return l
}
