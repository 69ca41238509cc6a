package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
	"github.com/nodedns/nodedns/webhook/internal/report"
)

// runReport is the subcommand. It takes the flags of serving, so that it decides as the webhook does; the credentials
// are those of whoever asks, who must be allowed to list Pods.
func runReport(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flagSet(&o, stderr)
	output := fs.String("o", "table", "json or table")
	err := fs.Parse(args)
	if err == nil {
		err = o.validate()
	}
	if err == nil && *output != "json" && *output != "table" {
		err = fmt.Errorf("-o: %q: want json or table", *output)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "nodedns-webhook report:", err)
		return 2
	}
	if err := o.report(ctx, *output, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "nodedns-webhook report:", err)
		return 1
	}
	return 0
}

func (o options) report(ctx context.Context, output string, stdout, stderr io.Writer) (err error) {
	var runErr error
	_, client, err := o.connect(nil)
	if err != nil {
		return err
	}
	// First, for an API server that is away or says no then is told at once, by its own words.
	pods, err := listPods(ctx, client, metav1.ListOptions{})
	if err != nil {
		return err
	}
	p, err := newPicture(o, client, nil, o.logger(stderr), nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var informers sync.WaitGroup
	informers.Go(func() { runErr = p.run(ctx) })
	defer func() { cancel(); informers.Wait(); err = errors.Join(err, runErr) }()
	if err := p.wait(ctx); err != nil {
		return err
	}
	var blocked func(string, []byte) bool
	if p.policies != nil {
		blocked = p.policies.Blocked
	}
	// What would be the case with all caches ready: the report is about Pods, not about the moment.
	in := poddns.Input{Cluster: p.discovery.Cluster(), Policy: o.policy(),
		Caches: func(poddns.Placement) poddns.Caches { return poddns.CachesAllReady }}
	r, err := report.Build(pods, func(name string) (poddns.Namespace, bool) { return p.namespaces.Namespace(ctx, name) }, in, blocked)
	if err != nil {
		return err
	}
	if r.Configuration, err = o.configurationProblems(ctx, client); err != nil {
		return err
	}
	if output == "json" {
		return r.WriteJSON(stdout)
	}
	return r.WriteTable(stdout)
}

// listPods lists the Pods of all namespaces that options select, by the page.
func listPods(ctx context.Context, client kubernetes.Interface, options metav1.ListOptions) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	options.Limit = 500
	for {
		page, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing Pods: %w", err)
		}
		pods = append(pods, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return pods, nil
		}
	}
}
