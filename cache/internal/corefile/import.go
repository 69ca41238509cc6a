package corefile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func snippetName(keys []token) (string, bool) {
	if len(keys) != 1 {
		return "", false
	}
	name, ok := strings.CutPrefix(keys[0].text, "(")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(name, ")")
}

// define stores the words of a snippet; they are read as lines or blocks where the snippet is imported.
func (r *reader) define(name string, at token, c *cursor) error {
	if _, ok := r.snippets[name]; ok {
		return &Problem{Pos: at.pos, Text: fmt.Sprintf("the snippet (%s) is defined twice", name)}
	}
	if !c.at("{") {
		return &Problem{Pos: at.pos, Text: fmt.Sprintf("the snippet (%s) needs a {", name)}
	}
	c.take()
	start, depth := c.next, 1
	for !c.done() {
		switch c.take().text {
		case "{":
			depth++
		case "}":
			depth--
		}
		if depth == 0 {
			r.snippets[name] = c.tokens[start : c.next-1]
			return nil
		}
	}
	return &Problem{Pos: c.end, Text: fmt.Sprintf("missing } of the snippet (%s) of line %d", name, at.pos.Line)}
}

// importInto reads what the import line at the cursor names: a snippet, a file, or the files a pattern matches.
func importInto[T any](r *reader, c *cursor, parse func(*cursor) ([]T, error)) ([]T, error) {
	at := c.take()
	fail := func(format string, args ...any) ([]T, error) {
		return nil, &Problem{Pos: at.pos, Directive: "import", Text: fmt.Sprintf(format, args...)}
	}
	if !c.sameLine() {
		return fail("needs the name of a snippet or file")
	}
	name, err := expandEnv(c.take().text, r.env)
	if err != nil {
		return fail("%v", err)
	}
	if c.sameLine() && !c.at("}") {
		return fail("takes one argument, the name of a snippet or file; %q is one too many", c.peek().text)
	}
	if tokens, ok := r.snippets[name]; ok {
		return importTokens(r, at, "("+name+")", tokens, parse)
	}
	path := name
	if !filepath.IsAbs(path) { // as seen from the file that imports, not from the working directory
		path = filepath.Join(filepath.Dir(at.pos.File), path)
	}
	paths := []string{path}
	if strings.ContainsAny(path, "*?[") {
		if paths, err = filepath.Glob(path); err != nil {
			return fail("pattern %q: %v", name, err)
		}
		if len(paths) == 0 {
			r.warnings = append(r.warnings, &Problem{Pos: at.pos, Directive: "import", Text: fmt.Sprintf("no file matches %q", name)})
		}
	}
	var out []T
	for _, p := range paths {
		text, err := r.readFile(p)
		if err != nil {
			if !strings.ContainsAny(path, "*?[") && os.IsNotExist(err) {
				return fail("no snippet and no file of the name %q (a snippet must be defined before it is imported)", name)
			}
			return fail("reading %s: %v", p, pathCause(err))
		}
		r.files = append(r.files, p)
		tokens, err := lex(p, string(text))
		if err != nil {
			return nil, err
		}
		items, err := importTokens(r, at, p, tokens, parse)
		if err != nil {
			return nil, err
		}
		out = append(out, items...)
	}
	return out, nil
}

func importTokens[T any](r *reader, at token, name string, tokens []token, parse func(*cursor) ([]T, error)) ([]T, error) {
	if slices.Contains(r.imports, name) {
		chain := strings.Join(append(r.imports[slices.Index(r.imports, name):], name), ", which imports ")
		return nil, &Problem{Pos: at.pos, Directive: "import", Text: "imports itself: " + chain}
	}
	if r.budget -= len(tokens) + 1; r.budget < 0 {
		return nil, &Problem{Pos: at.pos, Directive: "import", Text: fmt.Sprintf("imports expand to more than %d words", maxTokens)}
	}
	r.imports = append(r.imports, name)
	defer func() { r.imports = r.imports[:len(r.imports)-1] }()
	return parse(newCursor(tokens, at.pos.File))
}

// pathCause drops the operation and path that an fs.PathError repeats.
func pathCause(err error) error {
	if pe, ok := err.(*fs.PathError); ok { //nolint:errorlint // readFile returns it unwrapped, and only its text is wanted
		return pe.Err
	}
	return err
}
