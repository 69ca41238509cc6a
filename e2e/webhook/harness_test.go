// Package webhook_test runs nodedns-webhook, as built and with the rights of its manifests, against a real
// kube-apiserver that calls it over TLS. Nodes and cache Pods are objects only: no kubelet runs, and what a kubelet
// would report the test writes.
package webhook_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/bedtest"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

const (
	ownNamespace = "nodedns"
	injectLabel  = "node-local-dns-injection"
	localIP      = "169.254.25.10"
)

// cluster is a control plane with the manifests applied.
type cluster struct {
	t      testing.TB
	cp     *bed.ControlPlane
	client *kubernetes.Clientset
	bin    string // of the webhook
	token  string // kubeconfig of the webhook's service account
	http   *http.Client

	mu       sync.Mutex
	replicas []*replica
}

// replica is one running webhook.
type replica struct {
	c       *cluster
	name    string
	port    int
	process *host.Process
	cancel  context.CancelFunc
	gone    chan struct{}
}

// newCluster starts a control plane and applies an overlay.
func newCluster(t testing.TB, cfg bed.Config, overlay string) *cluster {
	t.Helper()
	return newClusterWith(t, cfg, func(*cluster) {}, overlay)
}

// newClusterWith does the same, with something done before the overlay is applied.
func newClusterWith(t testing.TB, cfg bed.Config, first func(*cluster), overlay string) *cluster {
	t.Helper()
	cfg.APIServerOnly = true
	cp := bedtest.ControlPlane(t, cfg)
	config := cp.RESTConfig()
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	bin, err := parts.Build(t.Context(), console.New(t.Output()), product())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, cp: cp, client: client, bin: bin + "/nodedns-webhook"}
	c.http = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return cp.Namespace().Dial(ctx, network, address)
		},
	}}
	first(c)
	c.kubectl("apply", "-k", "../../manifests/"+overlay)
	c.token = c.serviceAccount()
	c.clusterDNS()
	return c
}

func product() []parts.Part {
	var out []parts.Part
	for _, part := range parts.Product() {
		if part.Name == "nodedns-webhook" {
			out = append(out, part)
		}
	}
	return out
}

// kubectl runs the real one and returns what it printed.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), c.cp.Program("kubectl"), append([]string{"--kubeconfig=" + c.cp.Kubeconfig()}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// serviceAccount writes a kubeconfig with a token of the webhook's own account: whatever RBAC lacks then shows.
func (c *cluster) serviceAccount() string {
	c.t.Helper()
	hour := int64(7200)
	token, err := c.client.CoreV1().ServiceAccounts(ownNamespace).CreateToken(c.t.Context(), "nodedns-webhook",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	inner, err := clientcmd.LoadFromFile(c.cp.InnerKubeconfig())
	if err != nil {
		c.t.Fatal(err)
	}
	inner.AuthInfos = map[string]*clientcmdapi.AuthInfo{"webhook": {Token: token.Status.Token}}
	for _, context := range inner.Contexts {
		context.AuthInfo = "webhook"
	}
	path := c.cp.Workspace().Path("webhook.kubeconfig")
	if err := clientcmd.WriteToFile(*inner, path); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// clusterDNS makes the Service that a real cluster has.
func (c *cluster) clusterDNS() {
	c.t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kube-dns", Namespace: "kube-system", Labels: map[string]string{"k8s-app": "kube-dns"}}}
	service.Spec.ClusterIP = bed.DNSServiceIP
	service.Spec.Selector = map[string]string{"k8s-app": "kube-dns"}
	service.Spec.Ports = []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}}
	if _, err := c.client.CoreV1().Services("kube-system").Create(c.t.Context(), service, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// namespace makes a namespace with a service account, as the controller manager would.
func (c *cluster) namespace(name string, labels, annotations map[string]string) {
	c.t.Helper()
	_, err := c.client.CoreV1().Namespaces().Create(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		c.t.Fatal(err)
	}
	_, err = c.client.CoreV1().ServiceAccounts(name).Create(c.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		c.t.Fatal(err)
	}
}

// nodes makes n Nodes n0, n1, … with a ready cache each.
func (c *cluster) nodes(n int) {
	c.t.Helper()
	c.namespace("kube-system", nil, nil)
	for i := range n {
		name := fmt.Sprintf("n%d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelHostname: name}}}
		if _, err := c.client.CoreV1().Nodes().Create(c.t.Context(), node, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
		// The API server taints each new Node as not ready; the node controller, which does not run here, would end that.
		if _, err := c.client.CoreV1().Nodes().Patch(c.t.Context(), name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
			c.t.Fatal(err)
		}
		c.patchStatus("nodes", "", name, map[string]any{"nodeInfo": map[string]any{"bootID": "boot-1", "operatingSystem": "linux", "architecture": "amd64",
			"machineID": "", "systemUUID": "", "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": ""}})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "nodedns-cache-" + name, Labels: map[string]string{"k8s-app": "nodedns-cache"}}}
		pod.Spec.NodeName = name
		pod.Spec.HostNetwork = true
		pod.Spec.Containers = []corev1.Container{{Name: "cache", Image: "none"}}
		if _, err := c.client.CoreV1().Pods("kube-system").Create(c.t.Context(), pod, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
		c.cache(name, true)
	}
}

// cache sets whether the cache on a node is ready.
func (c *cluster) cache(node string, ready bool) {
	c.t.Helper()
	status := "False"
	if ready {
		status = "True"
	}
	c.patchStatus("pods", "kube-system", "nodedns-cache-"+node, map[string]any{"conditions": []any{map[string]any{
		"type": "Ready", "status": status, "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}}})
}

func (c *cluster) patchStatus(resource, namespace, name string, status map[string]any) {
	c.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		c.t.Fatal(err)
	}
	request := c.client.CoreV1().RESTClient().Patch(types.MergePatchType).Resource(resource).Name(name).SubResource("status").Body(patch)
	if namespace != "" {
		request = request.Namespace(namespace)
	}
	if err := request.Do(c.t.Context()).Error(); err != nil {
		c.t.Fatalf("status of %s %s: %v", resource, name, err)
	}
}

// webhook starts a replica and keeps its endpoint as kubelet and the endpoint controller would, by its /readyz.
func (c *cluster) webhook(name string, port int, flags ...string) *replica {
	c.t.Helper()
	r := &replica{c: c, name: name, port: port, gone: make(chan struct{})}
	at := func(offset int) string { return fmt.Sprintf("%s:%d", bed.ControlPlaneIP, port+offset) }
	var err error
	r.process, err = c.cp.Start(host.Command{Name: name, Path: c.bin, Env: []string{"GOMEMLIMIT=80MiB"}, Args: append([]string{
		"-kubeconfig=" + c.token, "-namespace=" + ownNamespace, "-listen-address=" + at(0), "-metrics-address=" + at(1), "-probe-address=" + at(2),
		"-cluster-domain=cluster.local", "-host-searches=none", "-resolv-conf=/dev/null", "-log-level=debug",
	}, flags...)})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	r.cancel = cancel
	go r.keepEndpoint(ctx)
	c.mu.Lock()
	c.replicas = append(c.replicas, r)
	c.mu.Unlock()
	c.t.Cleanup(func() {
		cancel()
		<-r.gone
		r.process.Stop(20 * time.Second)
		if c.t.Failed() {
			c.t.Logf("the log of %s ends:\n%s", name, host.Tail(c.cp.Workspace().Path(name+".log"), 30))
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

// until waits for something that the webhook is to notice.
func (c *cluster) until(what string, try func(ctx context.Context) error) {
	c.t.Helper()
	if err := host.Until(c.t.Context(), what, 60*time.Second, try); err != nil {
		c.t.Fatal(err)
	}
}

// pod is a Pod to be created in tests.
func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	for _, c := range change {
		c(p)
	}
	return p
}

// create creates a Pod and returns it as stored.
func (c *cluster) create(namespace string, p *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	created, err := c.client.CoreV1().Pods(namespace).Create(c.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatalf("creating a Pod in %s: %v", namespace, err)
	}
	return created
}

// dryRun creates a Pod without storing it.
func (c *cluster) dryRun(ctx context.Context, namespace string) (*corev1.Pod, error) {
	return c.client.CoreV1().Pods(namespace).Create(ctx, pod(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// injected tells whether a Pod's first nameserver is the cache.
func injected(p *corev1.Pod) bool {
	return p.Spec.DNSPolicy == corev1.DNSNone && p.Spec.DNSConfig != nil && len(p.Spec.DNSConfig.Nameservers) > 0 && p.Spec.DNSConfig.Nameservers[0] == localIP
}

var errNotInjected = errors.New("the Pod was not injected")

// untilInjected waits until Pods of the namespace are injected.
func (c *cluster) untilInjected(namespace string) {
	c.t.Helper()
	c.until("injection in "+namespace, func(ctx context.Context) error {
		p, err := c.dryRun(ctx, namespace)
		if err == nil && !injected(p) {
			err = errNotInjected
		}
		return err
	})
}

// failOpen is how many calls to the webhook have failed, by the API server's own count.
func (c *cluster) failOpen() int {
	c.t.Helper()
	text, err := c.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	total := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_admission_webhook_fail_open_count{") {
			var n float64
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err != nil {
				c.t.Fatal(err)
			}
			total += int(n)
		}
	}
	return total
}

func enabled() map[string]string { return map[string]string{injectLabel: "enabled"} }

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
