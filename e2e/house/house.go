// Package house holds the rules of this repository that a compiler does not
// check: who may import whom, what the README promises, what must never be
// committed. Each rule is a test with its reason.
//
// Usage, from a test of a main package:
//
//	rows := house.Table(t, "../README.md", "Flags of nodedns-cache")
package house

import (
	"bufio"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Table returns the first cell of each row of the first Markdown table below the
// heading, without code quotes: the names that the table documents.
func Table(t testing.TB, file, heading string) []string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	found, inTable := false, false
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "#"):
			if found && inTable {
				return names
			}
			found = strings.TrimSpace(strings.TrimLeft(line, "#")) == heading
		case found && strings.HasPrefix(line, "|"):
			inTable = true
			if name := firstCell.FindStringSubmatch(line); name != nil {
				names = append(names, name[1])
			}
		case found && inTable:
			return names
		}
	}
	if !inTable {
		t.Fatalf("%s has no table below the heading %q", file, heading)
	}
	return names
}

var firstCell = regexp.MustCompile("^\\| *`([^`]+)`")
