package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodedns/nodedns/e2e/bed"
)

const startupTaint = "node-local-dns/not-ready"

// Tests that leave a control plane fit for the next share one: to start it takes as long as some of them.
func TestOperation(t *testing.T) {
	t.Parallel()
	c := newCluster(t, bed.Config{Name: "operation", Audit: true}, "self-managed")
	c.namespace("shop", enabled(), nil)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"audit mode and report", auditAndReport}, // first: the report counts all Pods there are
		{"startup taint", taintRemoval},
		{"odd Pods", oddPods},
		{"hostile clients", hostileClients},
		{"admission", admission}, // last: it kills the leader
	} {
		t.Run(test.name, func(t *testing.T) {
			c.under(t).nodes(3)
			test.run(t, c)
		})
	}
}

// A cluster in which every node waits for its cache: the taint goes node by node as caches get ready, only with the
// component that gives the right to; a Pod for a node that waits is left alone.
func taintRemoval(t *testing.T, c *cluster) {
	c.kubectl("apply", "-f", manifests+"webhook/startup-taint/rbac.yaml", "-f", manifests+"webhook/startup-taint/limit.yaml")
	for i := range 3 {
		name := fmt.Sprintf("n%d", i)
		c.cache(name, false)
		c.taint(name, startupTaint, "someone.example/else")
	}
	hook := c.webhook("hook-a", 8443, "-cert-overlap=1s", "-startup-taint="+startupTaint, "-replace-grace=0s").await()
	if p := c.create("shop", pod()); injected(p) {
		t.Error("injected while every node waits for its cache")
	}
	for i := range 3 {
		name := fmt.Sprintf("n%d", i)
		if !slices.Contains(c.taints(name), startupTaint) {
			t.Errorf("%s has lost its taint before its cache was ready", name)
		}
		c.cache(name, true)
		c.until("the taint to go from "+name, func(context.Context) error {
			if slices.Contains(c.taints(name), startupTaint) {
				return errors.New("it is there")
			}
			return nil
		})
		if !slices.Equal(c.taints(name), []string{"someone.example/else"}) {
			t.Errorf("%s has taints %v", name, c.taints(name))
		}
	}

	c.mayOnlyUntaint(t, "n0", "someone.example/else")

	// A node boots anew, is tainted anew, and its cache Pod's status is still the old one.
	c.cache("n1", true)
	c.patchStatus("nodes", "", "n1", map[string]any{"nodeInfo": map[string]any{"bootID": "boot-2"}})
	c.until("the webhook to see the reboot", func(context.Context) error {
		if answer := hook.reviewPod(t, "shop", `{"metadata":{},"spec":{"nodeName":"n1"}}`); strings.Contains(answer, `"patch"`) {
			return errors.New("a Pod for the node is injected")
		}
		return nil
	})
	c.taint("n1", startupTaint)
	c.patchStatus("pods", "kube-system", "nodedns-cache-n1", map[string]any{"containerStatuses": []any{map[string]any{
		"name": "cache", "containerID": "containerd://second", "image": "x", "imageID": "x", "ready": false, "restartCount": 1}}})
	c.cache("n1", false)
	c.until("the webhook to see the cache start", func(context.Context) error {
		if !strings.Contains(hook.metrics(), "nodedns_webhook_breaker_open") || !slices.Contains(c.taints("n1"), startupTaint) {
			return errors.New("the taint is gone too early")
		}
		return nil
	})
	c.cache("n1", true)
	c.until("the taint to go after the reboot", func(context.Context) error {
		if slices.Contains(c.taints("n1"), startupTaint) {
			return errors.New("it is there")
		}
		return nil
	})
}

// mayOnlyUntaint wants the webhook's account to be refused everything that its right to patch Nodes would let it do.
func (c *cluster) mayOnlyUntaint(t *testing.T, node, foreign string) {
	t.Helper()
	config := c.cp.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + ownNamespace + ":nodedns-webhook"}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for what, patch := range map[string]string{
		"foreign taints":                 `{"spec":{"taints":null}}`,
		"sets no taints":                 `{"spec":{"taints":[{"key":"` + foreign + `","effect":"NoSchedule"},{"key":"node-local-dns/not-ready","effect":"NoExecute"}]}}`,
		"nothing of a Node: labels":      `{"metadata":{"labels":{"pool":"mine"}}}`,
		"nothing of a Node: annotations": `{"metadata":{"annotations":{"a":"b"}}}`,
		"nothing of a Node: cordon":      `{"spec":{"unschedulable":true}}`,
	} {
		c.until("the webhook's account to be refused: "+what, func(ctx context.Context) error {
			_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'nodedns-webhook-startup-taint'") {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
	}
	if _, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(`{"metadata":{"labels":{}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("a patch that changes nothing is refused: %v", err)
	}
}

func (c *cluster) taint(node string, keys ...string) {
	c.t.Helper()
	var taints []corev1.Taint
	for _, key := range keys {
		taints = append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.client.CoreV1().Nodes().Patch(c.t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) taints(node string) []string {
	c.t.Helper()
	n, err := c.client.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var keys []string
	for _, taint := range n.Spec.Taints {
		keys = append(keys, taint.Key)
	}
	return keys
}

// Audit mode changes nothing and counts; the report says who would be injected, and after the switch who is.
func auditAndReport(t *testing.T, c *cluster) {
	hook := c.webhook("hook-a", 8443, "-cert-overlap=1s", "-audit").await()
	c.until("the first audited Pod", func(ctx context.Context) error {
		if _, err := c.client.CoreV1().Pods("shop").Create(ctx, pod(), metav1.CreateOptions{}); err != nil {
			return err
		}
		if !strings.Contains(hook.metrics(), `nodedns_webhook_decisions_total{dry_run="false",reason="audit"} 1`) {
			return errors.New("not counted")
		}
		return nil
	})
	pods, err := c.client.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Spec.DNSPolicy != corev1.DNSClusterFirst || len(p.Labels)+len(p.Annotations) != 0 {
			t.Errorf("audit mode changed %s", p.Name)
		}
	}
	if strings.Contains(tail(c.cp.AuditLog()), "inject.nodedns.io/reason") {
		t.Error("audit mode annotates the audit log")
	}
	c.kubectl("create", "namespace", "other")
	report := c.report(t)
	if report.Summary["would-be-injected"] != len(pods.Items) || !report.SafeToUninstall {
		t.Errorf("report before: %+v", report)
	}

	promising := c.webhook("hook-b", 9443, "-cert-overlap=1s", "-default-injection=enabled").await()
	c.until("the replica to say that the selector does not keep what its flag promises", func(context.Context) error {
		if !strings.Contains(promising.metrics(), "\nnodedns_webhook_configuration_problems 1\n") {
			return errors.New("it does not")
		}
		return nil
	})
	if log := hostTail(c.cp.Workspace().Path("hook-b.log"), 10_000); !strings.Contains(log, "-default-injection=enabled promises") {
		t.Errorf("its log does not name the flag:\n%s", log)
	}
	hook.process.Stop(20 * time.Second)
	c.endpointGone("hook-a")
	c.untilInjected("shop")
	p := c.create("shop", pod())
	report = c.report(t)
	if report.Summary["injected"] != 1 || report.SafeToUninstall || report.Blocking != 1 {
		t.Errorf("report after: %+v", report)
	}
	// The selector as shipped and what the flags promise: they agree, and the report says where they would not.
	if len(report.Configuration) != 0 {
		t.Errorf("flags and webhook configuration as shipped: %q", report.Configuration)
	}
	if promised := c.report(t, "-pod-opt-in").Configuration; len(promised) != 1 || !strings.Contains(promised[0], "-pod-opt-in promises") {
		t.Errorf("with a flag that the selector does not keep: %q", promised)
	}
	// The cluster DNS moves: what was baked into the Pod no longer fits.
	report = c.report(t, "-cluster-dns=10.96.0.99")
	if report.Summary["outdated"] != 1 {
		t.Errorf("report after the cluster DNS moved: %+v", report)
	}
	out, err := exec.CommandContext(t.Context(), c.bin, append(c.reportArgs(), "-o=table")...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), p.Name) || !strings.Contains(string(out), "must stay: 1 Pods") {
		t.Errorf("table: %v\n%s", err, out)
	}
}

type reportText struct {
	Summary         map[string]int `json:"summary"`
	SafeToUninstall bool           `json:"safeToUninstall"`
	Blocking        int            `json:"blocking"`
	Configuration   []string       `json:"configuration"`
}

func (c *cluster) reportArgs() []string {
	return []string{"report", "-kubeconfig=" + c.cp.Kubeconfig(), "-cluster-domain=cluster.local", "-host-searches=none", "-resolv-conf=/dev/null"}
}

func (c *cluster) report(t *testing.T, flags ...string) reportText {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), c.bin, append(append(c.reportArgs(), "-o=json"), flags...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("report: %v\n%s", err, out)
	}
	var r reportText
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("report: %v\n%s", err, out)
	}
	return r
}
