// Command nodedns-webhook points new Pods of opted-in namespaces at the DNS cache of their node.
//
// It is a mutating admission webhook: it owns the decision which Pods are rewritten and to what, and the certificates
// and trust it needs for being called. It does not resolve anything and does not know how the caches work.
//
//	nodedns-webhook [flags]                         serve
//	nodedns-webhook report [-o json|table] [flags]  say who is injected and who would be
//	nodedns-webhook uninstall-check [-node NAME]    fail while Pods have the local address in their resolv.conf
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with everything passed in; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "report" {
		return runReport(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "uninstall-check" {
		return runUninstallCheck(ctx, args[1:], stdout, stderr)
	}
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "nodedns-webhook:", err)
		return 2
	}
	log := o.logger(stderr)
	klog.SetSlogLogger(log.With("by", "client-go"))
	if err := serve(ctx, o, log); err != nil {
		log.Error("stopped", "error", err)
		return 1
	}
	return 0
}

// logger makes the one logger of the process.
func (o options) logger(w io.Writer) *slog.Logger {
	handler := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, handler))
	}
	return slog.New(slog.NewTextHandler(w, handler))
}
