// Command failover runs the failover tests of the node room as a matrix of proxy modes, faults and clients, prints it as a
// table and writes _out/failover.json. The tests themselves, with what each cell may lose, are in cache/internal/node.
//
//	go run ./e2e/failover          every mode, fault and client, with faults that take a minute
//	go run ./e2e/failover -quick   what make test runs: each fault once in each mode
//
// It needs root and installs what is missing. The exit code is 0 only if no cell lost more than it may.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/load"
	"github.com/nodedns/nodedns/e2e/parts"
)

func main() {
	quick := flag.Bool("quick", false, "each fault once in each mode, none that takes a minute")
	flag.Parse()
	host.FollowParent()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	// A second Ctrl-C ends this program at once; the kernel then ends its children.
	defer context.AfterFunc(ctx, stop)()
	con := console.New(os.Stdout)
	if err := run(ctx, con, *quick); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, con *console.Console, quick bool) error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	if err := host.Preflight(host.Needs{Root: true, UML: true, Memory: 2500, Dir: root}); err != nil {
		return err
	}
	if err := host.Install(ctx, con, append(bed.Packages(), bed.TestPackages()...)...); err != nil {
		return err
	}
	if _, err := parts.Build(ctx, con, parts.Proxy()); err != nil {
		return err
	}
	matrix, usual := "full", 30*time.Minute
	if quick {
		matrix, usual = "quick", 8*time.Minute
	}
	con.Step("failover in every mode (about %s)", console.Short(usual))
	g, testErr := gather(ctx, con, root, matrix)
	con.Plain("")
	printTable(os.Stdout, g.cells)
	file := filepath.Join(root, "_out", "failover.json")
	if err := write(file, g.cells); err != nil {
		return err
	}
	con.Plain("")
	con.Step("%d cells in %s", len(g.cells), file)
	return testErr
}

// gather runs the tests and collects the cells they print.
func gather(ctx context.Context, con *console.Console, root, matrix string) (*gatherer, error) {
	g := &gatherer{con: con}
	cmd := host.GoCommand(ctx, root, "test", "-count=1", "-v", "-timeout=40m", "-parallel=1",
		"-run=^(TestKernelFailover|TestKernelKubeProxy|TestUML)$/^(ipvs|iptables|nftables|kube-proxy)", "./cache/internal/node")
	cmd.Stdout, cmd.Stderr = g, os.Stderr
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0", "REQUIRE_KERNEL=1", "NODE_TEST_MATRIX="+matrix)
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return g, context.Cause(ctx)
	case err != nil:
		return g, fmt.Errorf("some cells lost more than they may, see above: %w", err)
	case len(g.cells) == 0:
		return g, fmt.Errorf("the tests passed, but printed no cell")
	}
	return g, nil
}

func write(file string, cells []load.Cell) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(struct {
		Cells []load.Cell `json:"cells"`
	}{cells}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
