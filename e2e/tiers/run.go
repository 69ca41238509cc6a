package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
)

type runner struct {
	con      *console.Console
	root     string
	fuzztime string
	strict   bool
}

// An outcome is what became of a tier.
type outcome struct {
	tier  tier
	tally tally
	took  time.Duration
	// skipped is why the tier did not run.
	skipped error
	// failed is why it failed, beyond its failed tests.
	failed error
}

func (o outcome) bad(strict bool) bool {
	return o.failed != nil || o.tally.failed > 0 || strict && (o.skipped != nil || len(o.tally.skips) > 0)
}

// all runs the tiers in order and returns the exit code. A failed tier does not stop the others: one run should tell all.
func (r *runner) all(ctx context.Context, ts []tier) int {
	defer host.Sweep(r.con) // test programs that were interrupted leave their run folders
	var done []outcome
	for i, t := range ts {
		if ctx.Err() != nil {
			break
		}
		r.con.Plain("")
		r.con.Step("tier %d of %d: %s: %s (about %s when everything is built)", i+1, len(ts), t.name, t.what, console.Short(t.usual))
		done = append(done, r.one(ctx, t))
	}
	return r.report(ctx, ts, done)
}

func (r *runner) one(ctx context.Context, t tier) (o outcome) {
	o.tier = t
	begin := time.Now()
	defer func() { o.took = time.Since(begin) }()
	t.needs.Dir = r.root
	if o.skipped = host.Preflight(t.needs); o.skipped != nil {
		return o
	}
	if o.failed = host.Install(ctx, r.con, t.packages...); o.failed != nil {
		return o
	}
	if t.prepare != nil {
		if o.failed = t.prepare(ctx, r.con); o.failed != nil {
			return o
		}
	}
	if t.fuzz {
		o.failed = r.fuzz(ctx, t, &o.tally)
		return o
	}
	// -count=1: what the kernel does is no input that Go's test cache knows of.
	o.failed = r.goTest(ctx, t, &o.tally, append([]string{"-count=1"}, t.args...)...)
	return o
}

// goTest runs go test and counts. Failed tests are in the tally; the error is for everything else that went wrong.
func (r *runner) goTest(ctx context.Context, t tier, n *tally, args ...string) error {
	full := []string{"test", "-json"}
	if t.race {
		full = append(full, "-race")
	}
	cmd := r.command(ctx, t, append(full, args...)...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("starting go test: %w", err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting go test: %w", err)
	}
	failedBefore := n.failed
	stop := r.heartbeat(t)
	readErr := n.read(pipe, r.con, t.live)
	stop()
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case readErr != nil:
		return readErr
	case err != nil && n.failed == failedBefore:
		return fmt.Errorf("go test %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// heartbeat says now and then that a tier still runs, if nothing else does: builds are silent.
func (r *runner) heartbeat(t tier) (stop func()) {
	begin, end := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				if r.con.Quiet() > 30*time.Second {
					r.con.Step("  … %s: %s so far", t.name, console.Short(time.Since(begin)))
				}
			}
		}
	})
	return func() {
		close(end)
		wg.Wait()
	}
}

// command is go with or without C.
func (r *runner) command(ctx context.Context, t tier, args ...string) *exec.Cmd {
	cmd := host.GoCommand(ctx, r.root, args...)
	cgo := "0"
	if t.race {
		cgo = "1"
	}
	cmd.Env = append(cmd.Env, "CGO_ENABLED="+cgo)
	return cmd
}
