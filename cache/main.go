// Command nodedns-cache is a DNS cache for one Kubernetes node.
//
// It resolves for the node's Pods, owns the interface and the rules that lead their questions to it, and lets the kernel take
// both away when it dies. It reads the Corefile, the flags and the environment of the node-local cache that Kubernetes ships.
//
// This package joins the rooms below internal/ and holds nothing else: flags and environment (flags.go, cluster.go), files
// (source.go), the parts a configuration stands for (build.go), what serves (serve.go), changes of it (reload.go), and the
// order of starting and stopping (assemble.go, start.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	env := environment{lookup: os.LookupEnv, stdout: os.Stdout, stderr: os.Stderr}
	if err := run(ctx, os.Args[1:], env); err != nil {
		fmt.Fprintln(os.Stderr, "nodedns-cache: "+strings.ReplaceAll(err.Error(), "\n", "\n  "))
		os.Exit(1)
	}
}

// environment is what main takes from the process, so that the rest can be run by a test.
type environment struct {
	lookup         func(string) (string, bool)
	stdout, stderr io.Writer
}

// run is main without the process: it returns instead of exiting.
func run(ctx context.Context, args []string, env environment) error {
	command := "serve"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	switch command {
	case "serve", "check", "cleanup":
	case "version":
		_, err := fmt.Fprintln(env.stdout, versionText())
		return err
	default:
		return fmt.Errorf("unknown command %q; allowed: check FILE, cleanup, version, or none to serve", command)
	}
	o, err := parseFlags(args, env)
	switch {
	case errors.Is(err, errHelp):
		return nil
	case err != nil:
		return err
	case o.version:
		_, err := fmt.Fprintln(env.stdout, versionText())
		return err
	}
	switch command {
	case "check":
		return check(o, env)
	case "cleanup":
		return cleanup(ctx, o, env)
	}
	if len(o.args) > 0 {
		return fmt.Errorf("unexpected argument %q", o.args[0])
	}
	return interrupted(ctx, serve(ctx, o, env))
}
