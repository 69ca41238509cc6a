package corefile

import (
	"strings"
	"unicode/utf8"

	"github.com/coredns/caddy/caddyfile"
)

// token is one word of a Corefile.
type token struct {
	text string
	pos  Pos
	last int // line the token ends on; a quoted token may span lines
}

// endMark is appended to every text: when it does not come back as a token of its own, a quote was left open. The lexer
// itself takes the end of the file for the closing quote.
const endMark = "\x00end\x00"

// maxTokens bounds what imports may expand to. A snippet that imports another one twice doubles at each level.
const maxTokens = 1 << 17

// lex splits text into words. The words and their quoting are those of the Caddyfile lexer: double quotes only, \" inside
// them, # starts a comment even inside a word, and an unquoted byte order mark is skipped.
func lex(file, text string) ([]token, error) {
	if i := invalidUTF8(text); i >= 0 {
		return nil, &Problem{Pos: Pos{file, 1 + strings.Count(text[:i], "\n")}, Text: "not UTF-8 text"}
	}
	d := caddyfile.NewDispenser(file, strings.NewReader(text+"\n"+endMark+"\n"))
	var tokens []token
	for d.Next() {
		t := token{text: d.Val(), pos: Pos{file, d.Line()}}
		t.last = t.pos.Line + strings.Count(t.text, "\n")
		if t.text == endMark {
			return tokens, nil
		}
		if strings.Contains(t.text, endMark) {
			return nil, &Problem{Pos: t.pos, Text: `the quote " opened here is never closed`}
		}
		if len(tokens) == maxTokens {
			return nil, &Problem{Pos: t.pos, Text: "the file is too long"}
		}
		tokens = append(tokens, t)
	}
	return nil, &Problem{Pos: Pos{File: file}, Text: "the file cannot be split into words"}
}

func invalidUTF8(s string) int {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}
