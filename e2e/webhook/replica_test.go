package webhook_test

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/host"
)

// replica is one running webhook.
type replica struct {
	c       *cluster
	name    string
	port    int
	process *host.Process
	cancel  context.CancelFunc
	gone    chan struct{}
}

// webhook starts a replica and keeps its endpoint as kubelet and the endpoint controller would, by its /readyz.
func (c *cluster) webhook(name string, port int, flags ...string) *replica {
	c.t.Helper()
	r := &replica{c: c, name: name, port: port, gone: make(chan struct{})}
	at := func(offset int) string { return fmt.Sprintf("%s:%d", bed.ControlPlaneIP, port+offset) }
	var err error
	r.process, err = c.cp.Start(host.Command{Name: name, Path: c.bin, Env: []string{"GOMEMLIMIT=80MiB"}, Args: append([]string{
		"-kubeconfig=" + c.token, "-namespace=" + ownNamespace, "-listen-address=" + at(0), "-metrics-address=" + at(1), "-probe-address=" + at(2),
		"-cluster-domain=cluster.local", "-host-searches=none", "-resolv-conf=/dev/null", "-log-level=debug", "-shutdown-delay=0s",
	}, flags...)})
	if err != nil {
		c.t.Fatal(err)
	}
	t, background := c.t, context.WithoutCancel(c.t.Context())
	ctx, cancel := context.WithCancel(background)
	r.cancel = cancel
	go r.keepEndpoint(ctx)
	c.mu.Lock()
	c.replicas = append(c.replicas, r)
	c.mu.Unlock()
	t.Cleanup(func() {
		cancel()
		<-r.gone
		r.process.Stop(20 * time.Second)  // in order, so that the next replica need not wait for its Lease to run out
		_ = r.endpoint(background, false) // the next one of that name begins without it
		if t.Failed() {
			t.Logf("the log of %s ends:\n%s", name, host.Tail(c.cp.Workspace().Path(name+".log"), 30))
		}
	})
	return r
}

// keepEndpoint writes the EndpointSlice of the replica whenever its readiness changes.
func (r *replica) keepEndpoint(ctx context.Context) {
	defer close(r.gone)
	was := false
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if now := r.ready() == nil; now != was && r.endpoint(ctx, now) == nil {
			was = now
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *replica) endpoint(ctx context.Context, ready bool) error {
	slices := r.c.client.DiscoveryV1().EndpointSlices(ownNamespace)
	if !ready {
		return slices.Delete(ctx, r.name, metav1.DeleteOptions{})
	}
	port, name, yes, tcp := int32(r.port), "https", true, corev1.ProtocolTCP
	_, err := slices.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: r.name, Labels: map[string]string{discoveryv1.LabelServiceName: "nodedns-webhook"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{bed.ControlPlaneIP}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// ready asks the replica itself.
func (r *replica) ready() error {
	_, err := r.get(2, "/readyz")
	return err
}

// metrics is the text of the replica's metrics.
func (r *replica) metrics() string {
	r.c.t.Helper()
	text, err := r.get(1, "/metrics")
	if err != nil {
		r.c.t.Fatal(err)
	}
	return text
}

// metric is the value of a metric without labels.
func (r *replica) metric(name string) float64 {
	r.c.t.Helper()
	_, rest, found := strings.Cut(r.metrics(), "\n"+name+" ")
	var value float64
	if _, err := fmt.Sscan(rest, &value); !found || err != nil {
		r.c.t.Fatalf("no metric %s: %v", name, err)
	}
	return value
}

// readyText is what /readyz says, whatever the status.
func (r *replica) readyText() string {
	text, err := r.get(2, "/readyz")
	if err != nil {
		return err.Error()
	}
	return text
}

func (r *replica) get(offset int, path string) (string, error) {
	response, err := r.c.http.Get(fmt.Sprintf("http://%s:%d%s", bed.ControlPlaneIP, r.port+offset, path))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", response.StatusCode, body)
	}
	return string(body), err
}

// review posts a review of a plain Pod straight to the replica, as the API server would.
func (r *replica) review(t testing.TB, namespace string) string {
	t.Helper()
	return r.reviewPod(t, namespace, `{"metadata":{},"spec":{"containers":[]}}`)
}

func (r *replica) reviewPod(t testing.TB, namespace, object string) string {
	t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // who trusts whom is not what is asked here
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return r.c.cp.Namespace().Dial(ctx, network, address)
		},
	}
	body := fmt.Sprintf(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u1","namespace":%q,"operation":"CREATE","object":%s}}`, namespace, object)
	response, err := (&http.Client{Timeout: 5 * time.Second, Transport: transport}).Post(
		fmt.Sprintf("https://%s:%d/mutate", bed.ControlPlaneIP, r.port), "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

// TestMain lets more of these tests run at a time than there are processors: most of their time they wait.
func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// await waits until the replica is called by the API server.
func (r *replica) await() *replica {
	r.c.t.Helper()
	err := host.Until(r.c.t.Context(), r.name+" in service", 60*time.Second, func(ctx context.Context) error {
		_, err := r.c.client.DiscoveryV1().EndpointSlices(ownNamespace).Get(ctx, r.name, metav1.GetOptions{})
		return err
	}, r.process)
	if err != nil {
		r.c.t.Fatal(err)
	}
	return r
}

// endpointGone waits until the API server has no endpoint of that replica.
func (c *cluster) endpointGone(name string) {
	c.t.Helper()
	c.until("the endpoint of "+name+" to go", func(ctx context.Context) error {
		_, err := c.client.DiscoveryV1().EndpointSlices(ownNamespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return errors.New("it is there")
		}
		return err
	})
}

// resident is a line of /proc/pid/status, in bytes.
func resident(t testing.TB, pid int, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kb int
		if _, err := fmt.Sscanf(line, field+": %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	t.Fatalf("no %s", field)
	return 0
}
