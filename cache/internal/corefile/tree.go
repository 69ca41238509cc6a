package corefile

import (
	"fmt"
	"strings"
)

// line is a directive, or an option inside a directive's braces: its words and the lines of the braces behind them.
type line struct {
	words []token
	sub   []line
	open  bool // there were braces, perhaps empty ones
}

func (l line) pos() Pos { return l.words[0].pos }

// block is a server block as written: its keys and its directives.
type block struct {
	keys  []token
	lines []line
}

// reader groups words into blocks and follows imports. It checks structure only; variables and placeholders are replaced
// afterwards and word by word, so whatever they hold cannot add structure.
type reader struct {
	readFile func(string) ([]byte, error)
	env      func(string) (string, bool)
	snippets map[string][]token
	imports  []string // names of the files and snippets being read, outermost first
	files    []string // every file read
	budget   int      // tokens left, over all imports
	warnings []*Problem
}

// cursor walks over the words of one file or snippet.
type cursor struct {
	tokens []token
	next   int
	end    Pos // where to say that something is missing at the end
}

func newCursor(tokens []token, file string) *cursor {
	c := &cursor{tokens: tokens, end: Pos{File: file}}
	if n := len(tokens); n > 0 {
		c.end = Pos{tokens[n-1].pos.File, tokens[n-1].last}
	}
	return c
}

func (c *cursor) done() bool { return c.next >= len(c.tokens) }

func (c *cursor) peek() token { return c.tokens[c.next] }

func (c *cursor) take() token { t := c.tokens[c.next]; c.next++; return t }

func (c *cursor) at(s string) bool {
	return !c.done() && c.tokens[c.next].text == s
}

// sameLine reports whether the next word stands on the line the previous one ended on.
func (c *cursor) sameLine() bool {
	return c.next > 0 && !c.done() && c.tokens[c.next].pos.Line == c.tokens[c.next-1].last
}

func (r *reader) read(file, text string) ([]block, error) {
	tokens, err := lex(file, text)
	if err != nil {
		return nil, err
	}
	r.budget = maxTokens
	r.imports = []string{file}
	return r.blocks(newCursor(tokens, file))
}

// blocks reads server blocks and snippet definitions up to the end.
func (r *reader) blocks(c *cursor) ([]block, error) {
	var out []block
	for !c.done() {
		if c.at("import") {
			imported, err := importInto(r, c, r.blocks)
			if err != nil {
				return nil, err
			}
			out = append(out, imported...)
			continue
		}
		keys, err := r.keys(c)
		if err != nil {
			return nil, err
		}
		if name, ok := snippetName(keys); ok {
			if err := r.define(name, keys[0], c); err != nil {
				return nil, err
			}
			continue
		}
		b := block{keys: keys}
		if braced := c.at("{"); braced {
			c.take()
			b.lines, err = r.lines(c, keys[0].pos)
		} else { // a file of one block may leave the braces out
			if len(out) > 0 {
				return nil, &Problem{Pos: keys[0].pos, Text: fmt.Sprintf("%q opens a server block, but no { follows", keys[0].text)}
			}
			b.lines, err = r.bareLines(c)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// keys reads the names before a block's brace: on one line, or on several when the line before ends with a comma.
func (r *reader) keys(c *cursor) ([]token, error) {
	var keys []token
	more := false
	for !c.done() && (len(keys) == 0 || more || c.sameLine()) && !c.at("{") {
		t := c.take()
		if t.text == "}" {
			return nil, &Problem{Pos: t.pos, Text: "} without a { before it"}
		}
		if strings.HasSuffix(t.text, "{") {
			return nil, &Problem{Pos: t.pos, Text: fmt.Sprintf("%q: a space is missing before the {", t.text)}
		}
		for part := range strings.SplitSeq(t.text, ",") {
			if part != "" {
				keys = append(keys, token{text: part, pos: t.pos, last: t.last})
			}
		}
		more = strings.HasSuffix(t.text, ",")
	}
	switch {
	case len(keys) == 0:
		return nil, &Problem{Pos: c.peekPos(), Text: "a server block needs a zone before its {"}
	case more:
		return nil, &Problem{Pos: keys[len(keys)-1].pos, Text: "another zone must follow the comma"}
	}
	return keys, nil
}

func (c *cursor) peekPos() Pos {
	if c.done() {
		return c.end
	}
	return c.peek().pos
}

// lines reads up to and including the closing brace of what opened at from.
func (r *reader) lines(c *cursor, from Pos) ([]line, error) {
	var out []line
	for !c.done() {
		if c.at("}") {
			c.take()
			return out, nil
		}
		ls, err := r.line(c)
		if err != nil {
			return nil, err
		}
		out = append(out, ls...)
	}
	return nil, &Problem{Pos: c.end, Text: fmt.Sprintf("missing } of the block opened on line %d", from.Line)}
}

// bareLines reads lines up to the end.
func (r *reader) bareLines(c *cursor) ([]line, error) {
	var out []line
	for !c.done() {
		if c.at("}") {
			return nil, &Problem{Pos: c.peek().pos, Text: "} without a { before it"}
		}
		ls, err := r.line(c)
		if err != nil {
			return nil, err
		}
		out = append(out, ls...)
	}
	return out, nil
}

// line reads one directive with its braces; an import gives as many as it holds.
func (r *reader) line(c *cursor) ([]line, error) {
	if c.at("import") {
		return importInto(r, c, r.bareLines)
	}
	first := c.take()
	if first.text == "{" {
		return nil, &Problem{Pos: first.pos, Text: "{ must stand on the line of the directive it belongs to"}
	}
	l := line{words: []token{first}}
	for c.sameLine() {
		t := c.take()
		switch t.text {
		case "{":
			var err error
			l.open = true
			l.sub, err = r.lines(c, first.pos)
			return []line{l}, err
		case "}":
			return nil, &Problem{Pos: t.pos, Directive: first.text, Text: "} must be the first word of its line"}
		}
		l.words = append(l.words, t)
	}
	return []line{l}, nil
}
