package main

import (
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
	"github.com/nodedns/nodedns/webhook/internal/readiness"
)

// component is a kustomize component as far as ours go.
type component struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
	Patches    []struct {
		Target struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"target"`
		Patch string `json:"patch"`
	} `json:"patches"`
}

// with applies a component's patches for kind to an object.
func with[T any](t *testing.T, name, kind string, object T) T {
	t.Helper()
	text, err := os.ReadFile(manifests + "webhook/" + name + "/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c component
	if err := sigsyaml.UnmarshalStrict(text, &c); err != nil || c.Kind != "Component" {
		t.Fatalf("component %s: kind %q, %v", name, c.Kind, err)
	}
	document, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	applied := 0
	for _, p := range c.Patches {
		if p.Target.Kind != kind {
			continue
		}
		document = patched(t, document, p.Patch)
		applied++
	}
	if applied == 0 {
		t.Fatalf("component %s has no patch for a %s", name, kind)
	}
	var out T
	if err := json.Unmarshal(document, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// patched applies a JSON patch that is written as YAML or JSON.
func patched(t *testing.T, document []byte, patch string) []byte {
	t.Helper()
	asJSON, err := sigsyaml.YAMLToJSONStrict([]byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := jsonpatch.DecodePatch(asJSON)
	if err != nil {
		t.Fatal(err)
	}
	document, err = decoded.Apply(document)
	if err != nil {
		t.Fatalf("%v\n%s", err, patch)
	}
	return document
}

// Each component leaves flags and selector in agreement, alone and with the others.
func TestComponentsAgreeWithTheFlags(t *testing.T) {
	shipped := objects(t, "webhook")
	hook := only[*admissionv1.MutatingWebhookConfiguration](t, shipped)
	deployment := only[*appsv1.Deployment](t, shipped)

	wide := with(t, "pod-opt-in", "MutatingWebhookConfiguration", hook)
	deployment = with(t, "pod-opt-in", "Deployment", deployment)
	if problems := parseArgs(t, deployment).disagreements(&wide.Webhooks[0]); len(problems) > 0 {
		t.Errorf("pod-opt-in: %q", problems)
	}
	if problems := parseArgs(t, deployment).disagreements(&hook.Webhooks[0]); len(problems) != 1 {
		t.Errorf("pod-opt-in with the selector as it was: %q", problems)
	}
	deployment = with(t, "startup-taint", "Deployment", deployment)
	deployment = with(t, "fallback-auto", "Deployment", deployment)
	o := parseArgs(t, deployment)
	if !o.podOptIn || o.startupTaint != "node-local-dns/not-ready" || o.policy().Fallback != poddns.FallbackAuto {
		t.Errorf("flags with all components: %q", deployment.Spec.Template.Spec.Containers[0].Args)
	}
}

// The component that leaves out the second nameserver makes the caches' readiness the proof that this waits for.
func TestFallbackAutoComesWithItsProof(t *testing.T) {
	daemonSet := only[*appsv1.DaemonSet](t, objects(t, "cache"))
	before := daemonSet.Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet.Path
	if strings.Contains(before, readiness.BackstopProof) {
		t.Error("the DaemonSet as shipped asks for the proof: caches on other kernels would never be ready")
	}
	daemonSet = with(t, "fallback-auto", "DaemonSet", daemonSet)
	if got := daemonSet.Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet.Path; got != before+"?"+readiness.BackstopProof {
		t.Errorf("the readiness probe asks %s", got)
	}
}

// With every node tainted and no cache up, what the cluster needs to start is tolerant of either taint: the webhook, the
// cache, and the cluster DNS by the patch that comes with the component.
func TestEverythingAtTheStartToleratesTheTaint(t *testing.T) {
	dns := appsv1.Deployment{}
	dns.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists}}
	document, err := json.Marshal(dns)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := os.ReadFile(manifests + "webhook/startup-taint/cluster-dns.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(patched(t, document, string(patch)), &dns); err != nil {
		t.Fatal(err)
	}
	if len(dns.Spec.Template.Spec.Tolerations) < 2 {
		t.Error("the cluster DNS has lost its tolerations")
	}
	for name, spec := range map[string]corev1.PodSpec{
		"webhook":     only[*appsv1.Deployment](t, objects(t, "webhook")).Spec.Template.Spec,
		"cache":       only[*appsv1.DaemonSet](t, objects(t, "cache")).Spec.Template.Spec,
		"cluster DNS": dns.Spec.Template.Spec,
	} {
		for _, key := range []string{"node-local-dns/not-ready", "startup-taint.cluster-autoscaler.kubernetes.io/node-local-dns"} {
			for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
				taint := &corev1.Taint{Key: key, Effect: effect}
				if !slices.ContainsFunc(spec.Tolerations, func(tol corev1.Toleration) bool {
					return (tol.Key == "" || tol.Key == taint.Key) && (tol.Effect == "" || tol.Effect == taint.Effect) && tol.Operator == corev1.TolerationOpExists
				}) {
					t.Errorf("%s does not tolerate %s:%s", name, key, effect)
				}
			}
		}
	}
	if _, err := parse([]string{"-startup-taint=startup-taint.cluster-autoscaler.kubernetes.io/node-local-dns"}, io.Discard); err != nil {
		t.Error(err)
	}
}
