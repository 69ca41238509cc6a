package main

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/nodedns/nodedns/certs"
	"github.com/nodedns/nodedns/e2e/house"
	"github.com/nodedns/nodedns/webhook/internal/admit"
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
		{"-replace-grace=-1s -cert-overlap=-1s", []string{"-replace-grace", "-cert-overlap"}},
		{"-listen-address=foo -metrics-address=:99999 -probe-address=1", []string{"-listen-address", "-metrics-address", "-probe-address"}},
		{"-listen-address=", []string{"-listen-address"}},
		{"-namespace=A_B -service=A_ -webhook-configuration=A_ -ca-secret=A_ -cache-namespace=A_", []string{
			"-namespace", "-service", "-webhook-configuration", "-ca-secret", "-cache-namespace",
		}},
		{"-cert-hosts=a..b -cache-selector=((", []string{"-cert-hosts", "-cache-selector"}},
		{"-ready-off=nan", []string{"-ready-off"}},
		{"-local-ip=169.254.25.10,169.254.25.11", []string{"-local-ip", "one for each IP family"}},
		{"-local-ip=127.0.0.1", []string{"-local-ip", "no Pod reaches"}},
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

// allMetrics has everything registered that /metrics has. The state is not there to be read, only to be described.
func allMetrics() *prometheus.Registry {
	registry := newRegistry()
	admit.NewMetrics(registry)
	registerState(registry, nil, nil, nil)
	registry.MustRegister(newRefusedConnections())
	return registry
}

// The README's tables are what the program says.
func TestREADME(t *testing.T) {
	house.Section(t, "../README.md", "Flags of nodedns-webhook", house.Flags(flagSet(&options{}, io.Discard)), updating())
	house.Section(t, "../README.md", "Metrics of nodedns-webhook", house.Metrics(allMetrics(), "nodedns_"), updating())
}

// The names of all metrics are as Prometheus wants them.
func TestMetricNames(t *testing.T) {
	registry := newRegistry()
	admit.NewMetrics(registry)
	registerState(registry, newIdlePicture(t), idleSource{}, &agreement{})
	registry.MustRegister(newRefusedConnections())
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "nodedns_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// newIdlePicture is a picture of a cluster that is not there.
func newIdlePicture(t *testing.T) *picture {
	t.Helper()
	o, err := parse([]string{"-resolv-conf=/dev/null"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPicture(o, fake.NewClientset(), nil, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

type idleSource struct{ certs.Source }

func (idleSource) Ready() error      { return certs.ErrNoCertificate }
func (idleSource) Expiry() time.Time { return time.Time{} }
