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
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	blocking, err := uninstallCheck(ctx, o, *node)
	if err != nil {
		fmt.Fprintln(stderr, "nodedns-webhook uninstall-check:", err)
		return 1
	}
	if len(blocking) > 0 {
		fmt.Fprintf(stderr, "%d Pods have the local address in their resolv.conf and must be replaced first, with the webhook gone or their namespace's label removed:\n  %s\n",
			len(blocking), strings.Join(blocking, "\n  "))
		return 1
	}
	fmt.Fprintln(stdout, "no Pod has the local address in its resolv.conf")
	return 0
}

func uninstallCheck(ctx context.Context, o options, node string) ([]string, error) {
	cfg, err := o.discovery("")
	if err != nil {
		return nil, fmt.Errorf("-local-ip: %w", err)
	}
	_, client, err := o.connect(nil)
	if err != nil {
		return nil, err
	}
	return blockingPods(ctx, client, cfg.LocalIPs, node)
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
