package node

import (
	"fmt"
	"slices"
	"strings"
)

// listed is a rule as a chain's listing shows it.
type listed struct {
	comment string // empty for foreign rules
	spec    []string
}

// parseChain reads the rules of one chain from what iptables -S prints. They come in order.
func parseChain(chain string, lines []string) []listed {
	var out []listed
	for _, line := range lines {
		if !strings.HasPrefix(line, "-A "+chain+" ") {
			continue
		}
		words := splitWords(line)
		l := listed{spec: words[2:]}
		for i, w := range l.spec {
			if w == "--comment" && i+1 < len(l.spec) && strings.HasPrefix(l.spec[i+1], commentPrefix) {
				l.comment = l.spec[i+1]
			}
		}
		out = append(out, l)
	}
	return out
}

// splitWords splits a line as iptables-save quotes it: double quotes, and backslashes within them.
func splitWords(line string) []string {
	var words []string
	var word strings.Builder
	inWord, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == '"':
			quoted = !quoted
			inWord = true
		case c == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// change is one rule added to a chain or deleted from it.
type change struct {
	kind   string // what is counted: rule (missing), duplicate, stale, order
	chain  string
	insert bool
	pos    int      // of an insert, from 1
	spec   []string // with the comment
}

// inserts are those of the changes that add a rule.
func inserts(changes []change) []change {
	return slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return !c.insert })
}

// replacing is changes with a deletion before them of each rule that they add.
func replacing(changes []change) []change {
	var out []change
	for _, c := range inserts(changes) {
		out = append(out, change{kind: c.kind, chain: c.chain, spec: c.spec})
	}
	return append(out, changes...)
}

// key names the rule that it is about.
func (c change) key() string { return c.chain + joinWords(c.spec) }

// String is the change as iptables-restore reads it.
func (c change) String() string {
	head := "-D " + c.chain
	if c.insert {
		head = fmt.Sprintf("-I %s %d", c.chain, c.pos)
	}
	return head + joinWords(c.spec)
}

// joinWords quotes words as iptables-restore and iptables-save do, each after a space.
func joinWords(words []string) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteByte(' ')
		if w == "" || strings.ContainsAny(w, " \t\"'\\") {
			w = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w) + `"`
		}
		b.WriteString(w)
	}
	return b.String()
}

// plan says how a chain that lists have becomes one that holds want, in this order, each once. Foreign rules are never
// part of a change; deletions come first.
func plan(chain string, have []listed, want []rule) []change {
	var changes []change
	wanted := make([]string, len(want))
	for i, r := range want {
		wanted[i] = r.comment()
	}
	rest := slices.Clone(have)
	// iptables deletes by content and takes the first match, so of duplicates the last one stays.
	drop := func(i int, kind string) {
		changes = append(changes, change{kind: kind, chain: chain, spec: rest[i].spec})
		rest = slices.Delete(rest, i, i+1)
	}
	for i := 0; i < len(rest); {
		c := rest[i].comment
		switch {
		case c == "":
			i++
		case !slices.Contains(wanted, c):
			drop(i, "stale")
		case slices.ContainsFunc(rest[i+1:], func(l listed) bool { return l.comment == c }):
			drop(i, "duplicate")
		default:
			i++
		}
	}
	if !inOrder(rest, wanted) {
		for i := 0; i < len(rest); {
			if rest[i].comment == "" {
				i++
				continue
			}
			drop(i, "order")
		}
	}
	after := 0 // position of the wanted rule before this one
	for i, r := range want {
		if at := slices.IndexFunc(rest, func(l listed) bool { return l.comment == wanted[i] }); at >= 0 {
			after = at + 1
			continue
		}
		after++
		changes = append(changes, change{kind: "rule", chain: chain, insert: true, pos: after, spec: r.args()})
		rest = slices.Insert(rest, after-1, listed{comment: wanted[i]})
	}
	return changes
}

// inOrder says whether those of the wanted comments that are there come in the wanted order.
func inOrder(have []listed, wanted []string) bool {
	last := -1
	for _, l := range have {
		if l.comment == "" {
			continue
		}
		at := slices.Index(wanted, l.comment)
		if at < last {
			return false
		}
		last = at
	}
	return true
}
