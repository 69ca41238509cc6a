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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodedns/nodedns/e2e/bed"
)

const startupTaint = "node-local-dns/not-ready"

// A cluster in which every node waits for its cache: the taint goes node by node as caches get ready, only with the
// component that gives the right to; a Pod for a node that waits is left alone.
func TestStartupTaint(t *testing.T) {
	c := newCluster(t, bed.Config{Name: "taint"}, "self-managed")
	c.kubectl("apply", "-f", "../../manifests/webhook/startup-taint/rbac.yaml")
	c.namespace("shop", enabled(), nil)
	c.nodes(3)
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
func TestAuditAndReport(t *testing.T) {
	c := newCluster(t, bed.Config{Name: "report", Audit: true}, "self-managed")
	c.namespace("shop", enabled(), nil)
	c.nodes(2)
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

	c.webhook("hook-b", 9443, "-cert-overlap=1s").await()
	hook.process.Stop(0)
	c.endpointGone("hook-a")
	c.untilInjected("shop")
	p := c.create("shop", pod())
	report = c.report(t)
	if report.Summary["injected"] != 1 || report.SafeToUninstall || report.Blocking != 1 {
		t.Errorf("report after: %+v", report)
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
