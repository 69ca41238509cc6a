package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	sigsyaml "sigs.k8s.io/yaml"
)

func TestBlockingPods(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase, servers ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Status: corev1.PodStatus{Phase: phase}}
		if servers != nil {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: servers}
		}
		return p
	}
	client := fake.NewClientset(
		pod("plain", corev1.PodRunning),
		pod("injected", corev1.PodRunning, "169.254.25.10", "10.96.0.10"),
		pod("second", corev1.PodPending, "192.0.2.1", "169.254.25.10"),
		pod("ended", corev1.PodSucceeded, "169.254.25.10"),
		pod("failed", corev1.PodFailed, "169.254.25.10"),
		pod("another", corev1.PodRunning, "192.0.2.1"),
	)
	local := []netip.Addr{netip.MustParseAddr("169.254.25.10")}
	got, err := blockingPods(t.Context(), client, local, "")
	if want := []string{"shop/injected", "shop/second"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	var asked string
	client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		asked = a.(clienttesting.ListAction).GetListRestrictions().Fields.String()
		return true, &corev1.PodList{}, nil
	})
	if got, err := blockingPods(t.Context(), client, local, "node-1"); err != nil || len(got) > 0 || asked != "spec.nodeName=node-1" {
		t.Errorf("of one node: %q, %v, asked for %q", got, err, asked)
	}
}

func TestUninstallCheckFlags(t *testing.T) {
	for args, want := range map[string]int{"-help": 0, "-nonsense": 2, "-local-ip=x": 1, "-kubeconfig=/nowhere": 1} {
		var stderr bytes.Buffer
		if got := run(t.Context(), []string{"uninstall-check", args}, &stderr, &stderr); got != want || stderr.Len() == 0 {
			t.Errorf("%s: status %d, want %d: %s", args, got, want, &stderr)
		}
	}
}

func TestUntilClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		find := func(context.Context) ([]string, error) {
			looks++
			switch {
			case looks < 4:
				return []string{"shop/injected"}, nil
			case looks < 6:
				return nil, errors.New("the API server is away")
			case looks < 8:
				return []string{"shop/late"}, nil
			}
			return nil, nil
		}
		var stdout, stderr bytes.Buffer
		if got := untilClear(t.Context(), find, false, &stdout, &stderr); got != 1 || looks != 1 {
			t.Errorf("without waiting: status %d after %d looks", got, looks)
		}
		stderr.Reset()
		if got := untilClear(t.Context(), find, true, &stdout, &stderr); got != 0 || looks != 8 || stdout.Len() == 0 {
			t.Errorf("status %d after %d looks: %s", got, looks, &stdout)
		}
		// Each state is told once.
		for _, word := range []string{"shop/injected", "is away", "shop/late"} {
			if n := strings.Count(stderr.String(), word); n != 1 {
				t.Errorf("%q is told %d times:\n%s", word, n, &stderr)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		never := func(context.Context) ([]string, error) { return []string{"shop/injected"}, nil }
		if got := untilClear(ctx, never, true, &stdout, &stderr); got != 1 {
			t.Errorf("ended while waiting: status %d", got)
		}
	})
}

// What uninstalls asks first, may nothing but list Pods, and gives its token to the check alone.
func TestUninstallManifest(t *testing.T) {
	all := objects(t, "uninstall")
	role := only[*rbacv1.ClusterRole](t, all)
	if len(role.Rules) != 1 || !slices.Equal(role.Rules[0].Resources, []string{"pods"}) || !slices.Equal(role.Rules[0].Verbs, []string{"list"}) {
		t.Errorf("rights %+v", role.Rules)
	}
	binding, account := only[*rbacv1.ClusterRoleBinding](t, all), only[*corev1.ServiceAccount](t, all)
	pod := only[*appsv1.DaemonSet](t, all).Spec.Template.Spec
	if binding.RoleRef.Name != role.Name || binding.Subjects[0].Name != account.Name || binding.Subjects[0].Namespace != account.Namespace ||
		pod.ServiceAccountName != account.Name || *pod.AutomountServiceAccountToken || *account.AutomountServiceAccountToken {
		t.Errorf("account %s, bound %+v, Pod's %s", account.Name, binding.Subjects, pod.ServiceAccountName)
	}
	if len(pod.InitContainers) != 2 || pod.InitContainers[0].Name != "check" || !slices.Equal(pod.InitContainers[0].Args[:2], []string{"uninstall-check", "-wait"}) || pod.InitContainers[1].Args[0] != "cleanup" {
		t.Fatalf("it does not check and then clean up: %+v", pod.InitContainers)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		token := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "token" })
		if token != (c.Name == "check") {
			t.Errorf("%s has the token: %t", c.Name, token)
		}
		if !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation || !slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: %+v", c.Name, c.SecurityContext)
		}
	}
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSDefault || pod.Tolerations[0].Operator != corev1.TolerationOpExists {
		t.Errorf("host network %t, DNS policy %s, tolerations %v", pod.HostNetwork, pod.DNSPolicy, pod.Tolerations)
	}
	text, err := os.ReadFile(manifests + "uninstall/force/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Patches []struct{ Patch string } `json:"patches"`
	}
	if err := sigsyaml.Unmarshal(text, &k); err != nil || len(k.Patches) != 1 || !strings.Contains(k.Patches[0].Patch, "initContainers/0/name\n  value: check") {
		t.Errorf("the forced one does not take the check away: %v, %+v", err, k)
	}
}
