// Command tiers runs the tests of this project, tier by tier, and says at the end what ran and what was skipped and why.
//
//	go run ./e2e/tiers                      every tier
//	go run ./e2e/tiers -only netns,uml      these
//	go run ./e2e/tiers -only fuzz -fuzztime 5m
//
// It installs and builds what the tiers need. REQUIRE_KERNEL=1 makes a skipped tier or test a failure. The exit code is 0
// only if everything that ran passed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

func main() {
	only := flag.String("only", "", "tiers to run, separated by commas; empty runs all: "+strings.Join(names(tiers()), ", "))
	// A number of inputs, not a time: when the time is up, go test sometimes takes that for a failure of the target.
	fuzztime := flag.String("fuzztime", "60000x", "inputs (100x) or time (1m) for each fuzz target, as go test takes it")
	flag.Parse()
	host.FollowParent()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	// A second Ctrl-C ends this program at once; the kernel then ends its children.
	defer context.AfterFunc(ctx, stop)()
	root, err := parts.Root()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
		os.Exit(2)
	}
	chosen, err := choose(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
		os.Exit(2)
	}
	r := &runner{
		con: console.New(os.Stdout), root: root, fuzztime: *fuzztime, strict: os.Getenv("REQUIRE_KERNEL") == "1",
	}
	os.Exit(r.all(ctx, chosen))
}

func choose(only string) ([]tier, error) {
	all := tiers()
	if only == "" {
		return all, nil
	}
	var out []tier
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(t tier) bool { return t.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no tier %q; there are %s", name, strings.Join(names(all), ", "))
		}
		out = append(out, all[i])
	}
	return out, nil
}

func names(ts []tier) []string {
	out := make([]string, 0, len(ts))
	for _, t := range ts {
		out = append(out, t.name)
	}
	return out
}
