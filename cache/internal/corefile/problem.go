package corefile

import (
	"errors"
	"fmt"
	"strings"
)

// Pos is a place in a configuration file.
type Pos struct {
	File string
	Line int // from 1; 0 when the file as a whole is meant
}

func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Problem is one thing that is wrong with a configuration, or, in Config.Warnings, worth a look.
type Problem struct {
	Pos       Pos
	Directive string // empty when no directive is concerned
	Text      string // what is wrong and what is allowed
}

func (p *Problem) Error() string {
	if p.Directive == "" {
		return fmt.Sprintf("%s: %s", p.Pos, p.Text)
	}
	return fmt.Sprintf("%s: %s: %s", p.Pos, p.Directive, p.Text)
}

// problems collects what Parse finds, so that one run shows everything.
type problems []error

func (ps *problems) add(pos Pos, directive, format string, args ...any) {
	*ps = append(*ps, &Problem{Pos: pos, Directive: directive, Text: fmt.Sprintf(format, args...)})
}

func (ps problems) err() error { return errors.Join(ps...) }

// oneOf writes a list of allowed words.
func oneOf(words ...string) string { return "allowed: " + strings.Join(words, ", ") }
