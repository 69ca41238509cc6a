package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodedns/nodedns/e2e/console"
)

// What go test -json prints for a package with a test that passes, one that skips and one that fails.
const events = `{"Action":"start","Package":"github.com/nodedns/nodedns/x"}
{"Action":"run","Package":"github.com/nodedns/nodedns/x","Test":"TestGood"}
{"Action":"output","Package":"github.com/nodedns/nodedns/x","Test":"TestGood","Output":"    x_test.go:3: chatter\n"}
{"Action":"pass","Package":"github.com/nodedns/nodedns/x","Test":"TestGood/sub","Elapsed":1.25}
{"Action":"pass","Package":"github.com/nodedns/nodedns/x","Test":"TestGood","Elapsed":1.5}
{"Action":"output","Package":"github.com/nodedns/nodedns/x","Test":"TestOther","Output":"=== RUN   TestOther\n"}
{"Action":"output","Package":"github.com/nodedns/nodedns/x","Test":"TestOther","Output":"    x_test.go:9: needs root: really\n"}
{"Action":"output","Package":"github.com/nodedns/nodedns/x","Test":"TestOther","Output":"--- SKIP: TestOther (0.00s)\n"}
{"Action":"skip","Package":"github.com/nodedns/nodedns/x","Test":"TestOther"}
{"Action":"output","Package":"github.com/nodedns/nodedns/x","Test":"TestBad","Output":"    x_test.go:15: broken\n"}
{"Action":"fail","Package":"github.com/nodedns/nodedns/x","Test":"TestBad"}
{"Action":"output","Package":"github.com/nodedns/nodedns/x","Output":"FAIL\tgithub.com/nodedns/nodedns/x\t0.1s\n"}
{"Action":"fail","Package":"github.com/nodedns/nodedns/x"}
`

func TestRead(t *testing.T) {
	var out bytes.Buffer
	var n tally
	if err := n.read(strings.NewReader(events), console.New(&out), false); err != nil {
		t.Fatal(err)
	}
	want := tally{
		passed: 2, failed: 1, skips: []skip{{"x TestOther", "needs root: really"}},
		took: []timed{{"TestGood", 1500 * time.Millisecond}, {"TestOther", 0}, {"TestBad", 0}},
	}
	if diff := cmp.Diff(want, n, cmp.AllowUnexported(tally{}, skip{}, timed{})); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"TestGood 1.5s"}, n.slowest(5)); diff != "" {
		t.Errorf("slowest (-want +got):\n%s", diff)
	}
	if text := out.String(); !strings.Contains(text, "FAIL\tgithub.com/nodedns/nodedns/x") ||
		!strings.Contains(text, "broken") || strings.Contains(text, "chatter") {
		t.Errorf("printed:\n%s", text)
	}
}

func TestFuzzTargets(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"cache/a/a_test.go": "package a\n\nfunc FuzzA(f *testing.F) {\n}\n\nfunc FuzzHelper(t *testing.T) {}\n",
		"cache/a/a.go":      "package a\n\nfunc FuzzNot(f *testing.F) {}\n",
		"certs/c_test.go":   "package c\n\nfunc FuzzC(tf *testing.F) {}\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := fuzzTargets(root, []string{"cache", "certs"})
	if err != nil {
		t.Fatal(err)
	}
	want := []fuzzTarget{{"./cache/a", "FuzzA"}, {"./certs", "FuzzC"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(fuzzTarget{})); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
}

// Under REQUIRE_KERNEL=1 a run with a skipped test fails, and otherwise it does not.
func TestStrict(t *testing.T) {
	o := outcome{tally: tally{passed: 3, skips: []skip{{"x TestOther", "no kernel"}}}}
	for _, strict := range []bool{false, true} {
		var out bytes.Buffer
		r := &runner{con: console.New(&out), root: t.TempDir(), strict: strict}
		code := r.report(t.Context(), nil, []outcome{o})
		if (code != 0) != strict {
			t.Errorf("strict %t: exit code %d", strict, code)
		}
		if !strings.HasSuffix(strings.TrimSpace(out.String()), "skipped: x TestOther (no kernel)") {
			t.Errorf("strict %t: the last line does not say what was skipped and why:\n%s", strict, out.String())
		}
	}
}

func TestChoose(t *testing.T) {
	got, err := choose("uml,unit")
	if err != nil || len(got) != 2 || got[0].name != "uml" {
		t.Errorf("uml,unit: %v, %v", names(got), err)
	}
	if _, err := choose("nonsense"); err == nil {
		t.Error("a tier that does not exist was found")
	}
}
