package resolve

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// maxPattern bounds a regular expression, as CoreDNS does.
const maxPattern = 10000

// rule is a Rewrite made ready.
type rule struct {
	Rewrite
	pattern              *regexp.Regexp
	ownerPats, valuePats []pattern
}

type pattern struct {
	re *regexp.Regexp
	to string
}

// asked is what is asked for instead of the client's question.
type asked struct {
	question []byte
	// owners and values turn names in the answer back, last rule first. Nil without
	// rewriting.
	owners, values []func(string) string
	original       []byte // the client's question; nil without rewriting
}

func (a asked) name() []byte { return a.question[:len(a.question)-4] }

func newRule(r Rewrite) (rule, error) {
	out := rule{Rewrite: r}
	out.From, out.To = lowerASCII(r.From), lowerASCII(r.To)
	switch r.Match {
	case RewriteExact:
		for _, n := range []*string{&out.From, &out.To} {
			b, err := wire.ParseName(*n)
			if err != nil {
				return out, err
			}
			*n = wire.FormatName(b)
		}
	case RewritePrefix, RewriteSuffix, RewriteSubstring:
		if r.From == "" {
			return out, fmt.Errorf("nothing to look for")
		}
	case RewriteRegex:
		re, err := compile(r.From)
		if err != nil {
			return out, err
		}
		out.pattern = re
	default:
		return out, fmt.Errorf("unknown match %d", r.Match)
	}
	var err error
	if out.ownerPats, err = patterns(r.AnswerName); err != nil {
		return out, err
	}
	out.valuePats, err = patterns(r.AnswerValue)
	return out, err
}

func patterns(in []RewritePattern) (out []pattern, err error) {
	for _, p := range in {
		re, err := compile(p.From)
		if err != nil {
			return nil, err
		}
		out = append(out, pattern{re, p.To})
	}
	return out, nil
}

func compile(expr string) (*regexp.Regexp, error) {
	if len(expr) > maxPattern {
		return nil, fmt.Errorf("regular expression of %d characters: at most %d", len(expr), maxPattern)
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("compiling regular expression: %w", err)
	}
	return re, nil
}

// rewrite applies the rules to question. A result that is no name leaves the question
// as it was.
func (z *Zone) rewrite(question []byte) asked {
	if len(z.rules) == 0 {
		return asked{question: question}
	}
	out := asked{question: question}
	name := wire.FormatName(question[:len(question)-4])
	for i := range z.rules {
		r := &z.rules[i]
		to, ok := r.apply(name)
		if !ok {
			continue
		}
		b, err := wire.ParseName(to)
		if err != nil {
			continue
		}
		out.original = question
		out.question = append(b, question[len(question)-4:]...)
		r.addReverse(&out, name, wire.FormatName(b))
		name = wire.FormatName(b)
		if !r.Continue {
			break
		}
	}
	return out
}

// apply returns the rewritten name, and whether the rule fits at all.
func (r *rule) apply(name string) (string, bool) {
	switch r.Match {
	case RewriteExact:
		return r.To, name == r.From
	case RewritePrefix:
		rest, ok := strings.CutPrefix(name, r.From)
		return r.To + rest, ok
	case RewriteSuffix:
		from, to := fqSuffix(r.From), fqSuffix(r.To)
		rest, ok := strings.CutSuffix(name, from)
		return rest + to, ok
	case RewriteSubstring:
		return strings.ReplaceAll(name, r.From, r.To), strings.Contains(name, r.From)
	}
	return expandPattern(r.pattern, name, r.To)
}

// fqSuffix adds the final dot that names are compared with.
func fqSuffix(s string) string {
	if strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

// expandPattern replaces {0}, {1}… in to by the groups that re finds in name, which is
// matched without and with its final dot.
func expandPattern(re *regexp.Regexp, name, to string) (string, bool) {
	m := re.FindStringSubmatch(name)
	if m == nil {
		m = re.FindStringSubmatch(strings.TrimSuffix(name, "."))
	}
	if m == nil {
		return "", false
	}
	for i, group := range m {
		to = strings.ReplaceAll(to, "{"+strconv.Itoa(i)+"}", group)
	}
	return to, true
}

// addReverse adds what turns the names in an answer back, before what earlier rules
// have added.
func (r *rule) addReverse(a *asked, from, to string) {
	var owner, value func(string) string
	switch {
	case len(r.ownerPats) > 0:
		owner = replaceAll(r.ownerPats)
	case r.Match == RewriteSuffix && r.AnswerAuto:
		f, t := fqSuffix(r.From), fqSuffix(r.To)
		owner = func(n string) string {
			if rest, ok := strings.CutSuffix(n, t); ok {
				return rest + f
			}
			return n
		}
		value = owner
	case r.Match == RewriteExact || r.AnswerAuto:
		owner = func(n string) string {
			if strings.EqualFold(n, to) {
				return from
			}
			return n
		}
		value = owner
	}
	if len(r.valuePats) > 0 {
		value = replaceAll(r.valuePats)
	}
	if owner != nil {
		a.owners = append([]func(string) string{owner}, a.owners...)
	}
	if value != nil {
		a.values = append([]func(string) string{value}, a.values...)
	}
}

func replaceAll(ps []pattern) func(string) string {
	return func(n string) string {
		for _, p := range ps {
			if to, ok := expandPattern(p.re, n, p.to); ok {
				n = fqSuffix(to)
			}
		}
		return n
	}
}

// restore puts the client's question back into reply.
func (a asked) restore(reply []byte) ([]byte, error) {
	if a.original == nil {
		return reply, nil
	}
	chain := func(fs []func(string) string) func(string) string {
		return func(n string) string {
			for _, f := range fs {
				n = f(n)
			}
			return n
		}
	}
	return wire.Rename(reply, a.question, a.original, chain(a.owners), chain(a.values))
}

func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
