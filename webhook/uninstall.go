package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/nodedns/nodedns/webhook/internal/report"
)

// runUninstallCheck is the subcommand: its status is 0 only if no Pod is left that has the local address in its
// resolv.conf, on one node or anywhere. It needs no right but to list Pods.
func runUninstallCheck(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("nodedns-webhook uninstall-check", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`; empty: as kubectl finds it, in a Pod its service account")
	fs.StringVar(&o.localIP, "local-ip", "169.254.25.10", "`addresses` of the node caches, comma-separated")
	node := fs.String("node", "", "`name` of the one node to look at; default: all")
	wait := fs.Bool("wait", false, "look again every ten seconds until no Pod has the address, and tell of changes")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	find, err := o.uninstallCheck(*node)
	if err != nil {
		fmt.Fprintln(stderr, "nodedns-webhook uninstall-check:", err)
		return 1
	}
	return untilClear(ctx, find, *wait, stdout, stderr)
}

// untilClear looks once, or with wait until no Pod is in the way, and returns the status to exit with.
func untilClear(ctx context.Context, find func(context.Context) ([]string, error), wait bool, stdout, stderr io.Writer) int {
	for said := ""; ; {
		blocking, err := find(ctx)
		if err == nil && len(blocking) == 0 {
			fmt.Fprintln(stdout, "no Pod has the local address in its resolv.conf")
			return 0
		}
		if say := whatBlocks(blocking, err); say != said {
			said = say
			fmt.Fprintln(stderr, say)
		}
		if !wait {
			return 1
		}
		select {
		case <-ctx.Done():
			return 1
		case <-time.After(lookAgain):
		}
	}
}

// lookAgain is how long -wait waits between two looks: every node of a cluster may be at it.
const lookAgain = 10 * time.Second

func whatBlocks(blocking []string, err error) string {
	if err != nil {
		return "nodedns-webhook uninstall-check: " + err.Error()
	}
	return fmt.Sprintf("%d Pods have the local address in their resolv.conf and must be replaced first, with the webhook gone or their namespace's label removed:\n  %s",
		len(blocking), strings.Join(blocking, "\n  "))
}

// uninstallCheck returns what lists the Pods in the way.
func (o options) uninstallCheck(node string) (func(context.Context) ([]string, error), error) {
	cfg, err := o.discovery("")
	if err != nil {
		return nil, fmt.Errorf("-local-ip: %w", err)
	}
	_, client, err := o.connect(nil)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) ([]string, error) { return blockingPods(ctx, client, cfg.LocalIPs, node) }, nil
}

// blockingPods lists the Pods that run, or will, and have one of the addresses among their nameservers.
func blockingPods(ctx context.Context, client kubernetes.Interface, local []netip.Addr, node string) ([]string, error) {
	var options metav1.ListOptions
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	pods, err := listPods(ctx, client, options)
	if err != nil {
		return nil, err
	}
	var out []string
	for i := range pods {
		if report.Blocks(&pods[i], local) {
			out = append(out, pods[i].Namespace+"/"+pods[i].Name)
		}
	}
	slices.Sort(out)
	return out, nil
}
