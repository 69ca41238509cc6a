// Package webhook_test runs nodedns-webhook, as built and with the rights of its manifests, against a real
// kube-apiserver that calls it over TLS. Nodes and cache Pods are objects only: no kubelet runs, and what a kubelet
// would report the test writes.
package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
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
	manifests    = "../../manifests/"
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

// newCluster starts a control plane and applies an overlay.
func newCluster(t testing.TB, cfg bed.Config, overlay string) *cluster {
	t.Helper()
	cfg.APIServerOnly = true
	return newClusterWith(t, cfg, func(c *cluster) { c.kubectl("apply", "-k", manifests+overlay) })
}

// newClusterWith does the same with whatever apply applies.
func newClusterWith(t testing.TB, cfg bed.Config, apply func(*cluster)) *cluster {
	t.Helper()
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
	apply(c)
	c.token = c.serviceAccount()
	c.clusterDNS()
	return c
}

// under lets what the cluster does and finds count for a test that has it for a while, alone.
func (c *cluster) under(t *testing.T) *cluster {
	before := c.t
	c.t = t
	t.Cleanup(func() { c.t = before })
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

// nodes makes n Nodes n0, n1, … with a ready cache each, and puts back to that what an earlier test has left of them.
func (c *cluster) nodes(n int) {
	c.t.Helper()
	c.namespace("kube-system", nil, nil)
	for i := range n {
		name := fmt.Sprintf("n%d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelHostname: name}}}
		if _, err := c.client.CoreV1().Nodes().Create(c.t.Context(), node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
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
		if _, err := c.client.CoreV1().Pods("kube-system").Create(c.t.Context(), pod, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
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
