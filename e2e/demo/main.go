// Command demo shows the project at work on real parts, on this machine alone: a Kubernetes control plane, two nodes on
// kernels of their own with kube-proxy in IPVS mode, the manifests as they are, a Pod that resolves through its node's
// cache, and that cache killed three times while the Pod asks a hundred questions a second.
//
// It needs root on Debian 12 or later, installs and builds what is missing, writes _out/demo.json, and leaves nothing
// running. The exit code is 0 if everything was as it should be.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nodedns/nodedns/e2e/cluster"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

func main() {
	host.FollowParent()
	// What client-go says of streams that are cut on purpose is no news to a person.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	con := console.New(os.Stdout)
	// A second Ctrl-C ends the clean-up too; the kernel then ends the children with this process.
	defer context.AfterFunc(ctx, func() {
		stop()
		con.Step("stopping and cleaning up")
	})()
	switch err := run(ctx, con); {
	case ctx.Err() != nil:
		con.Step("interrupted; nothing is left running")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, con *console.Console) error {
	con.Plain("nodedns: a real Kubernetes 1.37 cluster on this machine, a node-local DNS cache in it, and what happens when it dies")
	con.Plain("")
	root, err := parts.Root()
	if err != nil {
		return err
	}
	env, err := cluster.Start(ctx, con, []string{"ipvs", "ipvs"})
	if err != nil {
		return err
	}
	report, err := env.Tell(ctx)
	con.Step("taking the cluster down")
	env.Stop()
	if left := host.Leftovers(); left != nil {
		err = errors.Join(err, left)
	}
	if err != nil {
		return err
	}
	report.Seconds = con.Elapsed().Round(100 * time.Millisecond).Seconds()
	file := filepath.Join(root, "_out", "demo.json")
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	summary(con, report, file)
	return report.Problems()
}
