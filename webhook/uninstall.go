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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

// runUninstallCheck is the subcommand: its status is 0 only if no Pod is left that has the local address in its
// resolv.conf, on one node or anywhere. It needs no right but to list Pods.
func runUninstallCheck(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("nodedns-webhook uninstall-check", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials; default: those of the Pod")
	local := fs.String("local-ip", "169.254.25.10", "`addresses` of the node caches, comma-separated")
	node := fs.String("node", "", "`name` of the one node to look at; default: all")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	blocking, err := uninstallCheck(ctx, o, *local, *node)
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

func uninstallCheck(ctx context.Context, o options, local, node string) ([]string, error) {
	var ips []netip.Addr
	for s := range strings.SplitSeq(local, ",") {
		ip, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("reading -local-ip: %w", err)
		}
		ips = append(ips, ip)
	}
	_, client, err := o.connect(nil)
	if err != nil {
		return nil, err
	}
	return blockingPods(ctx, client, ips, node)
}

// blockingPods lists the Pods that run, or will, and have one of the addresses among their nameservers.
func blockingPods(ctx context.Context, client kubernetes.Interface, local []netip.Addr, node string) ([]string, error) {
	options := metav1.ListOptions{Limit: 500}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	var out []string
	for {
		page, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing Pods: %w", err)
		}
		for _, pod := range page.Items {
			ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
			if !ended && pod.Spec.DNSConfig != nil && slices.ContainsFunc(local, func(ip netip.Addr) bool {
				return slices.Contains(pod.Spec.DNSConfig.Nameservers, ip.String())
			}) {
				out = append(out, pod.Namespace+"/"+pod.Name)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			slices.Sort(out)
			return out, nil
		}
	}
}
