package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/load"
)

// gatherer reads what go test prints: it keeps the cells, and passes on verdicts and what failed tests say.
type gatherer struct {
	con   *console.Console
	rest  []byte
	cells []load.Cell
}

func (g *gatherer) Write(p []byte) (int, error) {
	g.rest = append(g.rest, p...)
	for {
		line, rest, whole := bytes.Cut(g.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		g.rest = rest
		g.line(string(line))
	}
}

func (g *gatherer) line(line string) {
	if _, text, ok := strings.Cut(line, load.CellPrefix); ok {
		var c load.Cell
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			g.con.Plain("a cell that cannot be read (%v): %s", err, line)
			return
		}
		g.cells = append(g.cells, c)
		return
	}
	if worthSaying.MatchString(line) {
		g.con.Plain("%s", strings.TrimSpace(line))
	}
}

// worthSaying are verdicts on faults, and errors with their figures. Tests run tests of their own, so lines are indented.
var worthSaying = regexp.MustCompile(`--- (PASS|FAIL|SKIP): \S+/|_test\.go:\d+: .*(want at most|not |none of|disturbed|held for|took )|^FAIL|^ok|panic:`) //nolint:gochecknoglobals // a pattern is data

// printTable prints a line for each client of each fault, by mode.
func printTable(w io.Writer, cells []load.Cell) {
	cells = slices.Clone(cells)
	slices.SortStableFunc(cells, func(a, b load.Cell) int {
		return cmp.Or(strings.Compare(a.Mode, b.Mode), strings.Compare(a.Fault, b.Fault))
	})
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer func() { _ = t.Flush() }()
	fmt.Fprintln(t, "MODE\tGUARD\tFAULT\tCLIENT\tOVER\tFROM\tQUESTIONS\tLOST\tBASELINE LOST\tOUTAGE\tBY CACHE\tBY CLUSTER DNS")
	for _, c := range cells {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%.0f ms\t%d\t%d\n", c.Mode, c.Guard, c.Fault, c.Client, c.Transport, c.From,
			c.Queries, c.Failed, c.BaselineFailed, c.OutageMS, c.AnsweredBy[load.ByCache], c.AnsweredBy[load.ByClusterDNS])
	}
}
