package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nodedns/nodedns/e2e/console"
)

// A tally counts tests, subtests included.
type tally struct {
	passed int
	failed int
	skips  []skip
	// took are the tests that are no subtests.
	took []timed
}

type skip struct{ test, why string }

type timed struct {
	test string
	took time.Duration
}

// event is a line of go test -json (go doc test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64 // seconds
}

// read counts the events of one go test and prints what a person wants to see: Go's own line for each package, all that
// a failed test said, and with live what every test says while it runs.
func (n *tally) read(in io.Reader, con *console.Console, live bool) error {
	said := make(map[string][]string) // by package and test
	s := bufio.NewScanner(in)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var e event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			con.Plain("%s", s.Text()) // not an event: go itself says something
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			line := strings.TrimRight(e.Output, "\n")
			switch {
			case e.Test == "" && worthSaying(line), live && !framing(line):
				con.Plain("%s", line)
			case e.Test != "":
				said[key] = append(said[key], line)
			}
		case "pass", "fail", "skip":
			if e.Test == "" {
				continue
			}
			n.count(con, e, said[key], live)
			if !strings.Contains(e.Test, "/") {
				n.took = append(n.took, timed{e.Test, time.Duration(e.Elapsed * float64(time.Second))})
			}
			delete(said, key)
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("reading what go test says: %w", err)
	}
	return nil
}

func (n *tally) count(con *console.Console, e event, said []string, live bool) {
	switch e.Action {
	case "pass":
		n.passed++
	case "fail":
		n.failed++
		if !live {
			con.Plain("%s", strings.Join(said, "\n"))
		}
	case "skip":
		n.skips = append(n.skips, skip{short(e.Package) + " " + e.Test, reason(said)})
	}
}

// slowest names the tests that took longest, those of more than a second only: at most so many.
func (n *tally) slowest(most int) []string {
	slow := slices.SortedFunc(slices.Values(n.took), func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	var out []string
	for _, s := range slow[:min(most, len(slow))] {
		if s.took > time.Second {
			out = append(out, s.test+" "+console.Short(s.took))
		}
	}
	return out
}

// reason is what a skipped test said: the last line that is not go's own.
func reason(said []string) string {
	why := "no reason given"
	for _, line := range said {
		line = strings.TrimSpace(line)
		if framing(line) || line == "" {
			continue
		}
		// "file_test.go:12: the reason"
		if _, text, ok := strings.Cut(line, ": "); ok {
			line = text
		}
		why = line
	}
	return why
}

// framing tells go's own lines about single tests.
func framing(line string) bool {
	line = strings.TrimSpace(line)
	for _, p := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME", "--- PASS", "--- SKIP"} {
		if strings.HasPrefix(line, p) {
			return true
		}
	}
	return false
}

// worthSaying leaves out what package lines say without telling anything.
func worthSaying(line string) bool {
	return line != "" && line != "PASS" && !strings.HasSuffix(line, "[no test files]") && !strings.HasPrefix(line, "-test.shuffle")
}

func short(pkg string) string { return strings.TrimPrefix(pkg, "github.com/nodedns/nodedns/") }
