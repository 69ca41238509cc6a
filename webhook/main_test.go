package main

import (
	"bufio"
	"bytes"
	"flag"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

func newReader(text []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(text)) }

func itoa(n int32) string { return strconv.Itoa(int(n)) }

func TestBadFlagsAreNamed(t *testing.T) {
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"-local-ip=x", []string{"-local-ip", `"x" is not an IP address`}},
		{"-local-ip= -cluster-dns=0.0.0.0 -cluster-domain=Bad_ -host-searches=a..b", []string{"no address of the node caches", "0.0.0.0", "Bad_", "a..b"}},
		{"-cluster-dns=169.254.25.10", []string{"both the cache's and the cluster DNS's"}},
		{"-fallback-nameserver=never -not-ready=wait", []string{"always or auto", "leave or cluster-ip"}},
		{"-default-injection=yes", []string{"-default-injection", "enabled or disabled"}},
		{"-ready-on=0.5", []string{"ready fraction to go off"}},
		{"-certs=none -log-format=xml", []string{"-certs", "-log-format"}},
		{"-cert-duration=1h -ca-duration=30m", []string{"-cert-duration"}},
		{"-cert-duration=1m", []string{"-cert-overlap"}},
		{"-startup-taint=a/b/c", []string{"-startup-taint"}},
		{"-shutdown-delay=-1s", []string{"-shutdown-delay"}},
		{"serve", []string{"serve"}},
	} {
		var stderr bytes.Buffer
		if status := run(t.Context(), strings.Fields(tt.args), io.Discard, &stderr); status != 2 {
			t.Errorf("%s: status %d", tt.args, status)
		}
		for _, want := range tt.want {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("%s: %q does not say %q", tt.args, stderr.String(), want)
			}
		}
	}
}

func TestHelpIsNoError(t *testing.T) {
	var stderr bytes.Buffer
	if status := run(t.Context(), []string{"-help"}, io.Discard, &stderr); status != 0 || !strings.Contains(stderr.String(), "-local-ip") {
		t.Errorf("status %d: %s", status, stderr.String())
	}
}

func TestNoAPIServerIsAClearError(t *testing.T) {
	var stderr bytes.Buffer
	if status := run(t.Context(), []string{"-kubeconfig=/nonexistent/config"}, io.Discard, &stderr); status != 1 || !strings.Contains(stderr.String(), "-kubeconfig") {
		t.Errorf("status %d: %s", status, stderr.String())
	}
}

func TestDefaultsArePolicyDefaults(t *testing.T) {
	o, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := poddns.Policy{OwnNamespace: "nodedns", Fallback: poddns.FallbackAlways, NotReady: poddns.NotReadyLeave}
	if diff := cmp.Diff(want, o.policy()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	names, ips := o.hosts("k8s.example")
	if diff := cmp.Diff([]string{"nodedns-webhook", "nodedns-webhook.nodedns", "nodedns-webhook.nodedns.svc", "nodedns-webhook.nodedns.svc.k8s.example"}, names); diff != "" || ips != nil {
		t.Errorf("addresses %v, names -want +got:\n%s", ips, diff)
	}
}

// flagNames and metricNames are what the README's tables must have.
func flagNames() []string {
	var names []string
	flagSet(&options{}, io.Discard).VisitAll(func(f *flag.Flag) { names = append(names, "-"+f.Name) })
	return names
}

func metricNames() []string {
	var names []string
	for _, m := range ownMetrics() {
		names = append(names, m.name)
	}
	return names
}

func TestReferenceListsEverything(t *testing.T) {
	var out bytes.Buffer
	if status := run(t.Context(), []string{"reference"}, &out, io.Discard); status != 0 {
		t.Fatalf("status %d", status)
	}
	for _, name := range append(flagNames(), metricNames()...) {
		if !strings.Contains(out.String(), "| `"+name+"` |") {
			t.Errorf("%s is missing", name)
		}
	}
	if len(metricNames()) < 10 {
		t.Errorf("only %d metrics", len(metricNames()))
	}
}

// The names of all metrics are as Prometheus wants them.
func TestMetricNames(t *testing.T) {
	var text strings.Builder
	for _, m := range ownMetrics() {
		kind := "gauge"
		switch {
		case strings.HasSuffix(m.name, "_total"):
			kind = "counter"
		case strings.HasSuffix(m.name, "duration_seconds"):
			kind = "histogram"
		}
		text.WriteString("# HELP " + m.name + " " + m.help + "\n# TYPE " + m.name + " " + kind + "\n")
		if kind == "histogram" {
			text.WriteString(m.name + "_bucket{le=\"+Inf\"} 0\n" + m.name + "_sum 0\n" + m.name + "_count 0\n")
		} else {
			text.WriteString(m.name + " 0\n")
		}
	}
	problems, err := promlint.New(strings.NewReader(text.String())).Lint()
	if err != nil || len(problems) != 0 {
		t.Errorf("%v %v", problems, err)
	}
}
