// Package house holds the rules of this repository that a compiler does not
// check: who may import whom, what the README promises, what must never be
// committed. Each rule is a test with its reason.
//
// A main package keeps a table of the README true like this:
//
//	house.Section(t, "../README.md", "Flags of nodedns-cache", house.Flags(fs), *update)
package house

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// Section compares the text between a heading of a Markdown file and the next
// heading with want, or replaces it when update is set.
func Section(t testing.TB, file, heading, want string, update bool) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	start := strings.Index(text, "# "+heading+"\n")
	if start < 0 {
		t.Fatalf("%s has no heading %q", file, heading)
	}
	start += len("# " + heading + "\n")
	end := len(text)
	if next := strings.Index(text[start:], "\n#"); next >= 0 {
		end = start + next + 1
	}
	want = "\n" + strings.TrimSpace(want) + "\n\n"
	if update {
		if err := os.WriteFile(file, []byte(text[:start]+want+text[end:]), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(text[start:end])); diff != "" {
		t.Errorf("%s, %q is not what the program says (run this test with -update): -program +file\n%s", file, heading, diff)
	}
}

// Flags is a Markdown table of the flags of fs.
func Flags(fs *flag.FlagSet) string {
	var b strings.Builder
	b.WriteString("| Flag | Default | Meaning |\n|---|---|---|\n")
	fs.VisitAll(func(f *flag.Flag) {
		_, usage := flag.UnquoteUsage(f)
		value := ""
		if f.DefValue != "" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| `-%s` | %s | %s |\n", f.Name, value, cell(usage))
	})
	return b.String()
}

// Metrics is a Markdown table of the metrics of c whose names begin with one of
// prefixes.
func Metrics(c prometheus.Collector, prefixes ...string) string {
	descs := make(chan *prometheus.Desc)
	go func() {
		c.Describe(descs)
		close(descs)
	}()
	help := map[string]string{}
	for d := range descs {
		// A Desc shows its parts only as text: Desc{fqName: "…", help: "…", …}.
		var name, text string
		if _, err := fmt.Sscanf(d.String(), "Desc{fqName: %q, help: %q,", &name, &text); err != nil {
			continue
		}
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			help[name] = text
		}
	}
	var b strings.Builder
	b.WriteString("| Metric | Meaning |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(help)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, cell(help[name]))
	}
	return b.String()
}

func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", "\\|")
}
