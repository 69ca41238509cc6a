package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodedns/nodedns/e2e/console"
)

// report prints the closing table and returns the exit code.
func (r *runner) report(ctx context.Context, ts []tier, done []outcome) int {
	var sum tally
	var ran, skipped, failed []string
	code := 0
	r.con.Plain("")
	for _, o := range done {
		sum.passed += o.tally.passed
		sum.failed += o.tally.failed
		sum.skips = append(sum.skips, o.tally.skips...)
		verdict := "ok"
		if o.bad(r.strict) {
			verdict, code = "FAILED", 1
			failed = append(failed, o.tier.name)
		}
		if o.skipped != nil {
			skipped = append(skipped, fmt.Sprintf("%s (%s)", o.tier.name, oneLine(o.skipped)))
			r.con.Plain("%-8s %-7s %s", o.tier.name, "skipped", oneLine(o.skipped))
			continue
		}
		ran = append(ran, o.tier.name)
		r.con.Plain("%-8s %-7s %4d passed, %d failed, %d skipped in %s", o.tier.name, verdict,
			o.tally.passed, o.tally.failed, len(o.tally.skips), console.Short(o.took))
		if slow := o.tally.slowest(5); len(slow) > 0 {
			r.con.Plain("         slowest: %s", strings.Join(slow, ", "))
		}
		if o.failed != nil {
			r.con.Plain("         %s", strings.ReplaceAll(o.failed.Error(), "\n", "\n         "))
		}
	}
	for _, s := range sum.skips {
		skipped = append(skipped, fmt.Sprintf("%s (%s)", s.test, s.why))
	}
	if ctx.Err() != nil {
		code = 130
		for _, t := range ts[len(done):] {
			skipped = append(skipped, t.name+" (interrupted)")
		}
	}
	if r.strict && len(skipped) > 0 && code == 0 {
		code = 1
	}
	if r.strict && len(skipped) > 0 {
		r.con.Plain("REQUIRE_KERNEL=1: what was skipped counts as failed")
	}
	if err := r.noteFailed(failed); err != nil {
		r.con.Plain("noting the failed tiers: %v", err)
	}
	r.con.Plain("tests: %d passed, %d failed, %d skipped", sum.passed, sum.failed, len(sum.skips))
	r.con.Plain("ran in %s: %s; skipped: %s", console.Short(r.con.Elapsed()), list(ran), list(skipped))
	return code
}

// noteFailed writes the names of the failed tiers to a file, separated by commas as -only takes them.
func (r *runner) noteFailed(names []string) error {
	dir := filepath.Join(r.root, "_out")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "failed-tiers"), []byte(strings.Join(names, ",")), 0o644)
}

func list(s []string) string {
	if len(s) == 0 {
		return "nothing"
	}
	return strings.Join(s, ", ")
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
