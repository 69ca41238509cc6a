package report

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

func pod(name string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	p.Spec.NodeName = "n1"
	p.Spec.DNSPolicy = corev1.DNSClusterFirst
	if change != nil {
		change(&p)
	}
	return p
}

func injected(servers []string, searches ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.DNSPolicy = corev1.DNSNone
		p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: servers, Searches: searches}
	}
}

func build(t *testing.T, pods ...corev1.Pod) Report {
	t.Helper()
	r, err := Build(pods, func(name string) (poddns.Namespace, bool) {
		return poddns.Namespace{Name: name, Injection: map[string]string{"shop": poddns.Enabled}[name]}, name != "unheard-of"
	}, poddns.Input{
		Cluster: poddns.Cluster{LocalIPs: []netip.Addr{netip.MustParseAddr("169.254.25.10")},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Domain: "cluster.local", HostSearchesKnown: true},
		Caches: func(poddns.Placement) poddns.Caches { return poddns.CachesAllReady },
	}, func(_ string, labels []byte) bool { return bytes.Contains(labels, []byte("isolated")) })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestBuild(t *testing.T) {
	both := []string{"169.254.25.10", "10.96.0.10"}
	r := build(t,
		pod("plain", nil),
		pod("current", injected(both, "shop.svc.cluster.local", "svc.cluster.local", "cluster.local")),
		pod("old-ip", injected([]string{"169.254.25.10", "10.96.0.99"}, "shop.svc.cluster.local")),
		pod("old-domain", injected(both, "shop.svc.old.example")),
		pod("not-first", injected([]string{"192.0.2.1", "169.254.25.10", "10.96.0.10"}, "shop.svc.cluster.local")),
		pod("alone", injected([]string{"169.254.25.10"}, "shop.svc.cluster.local")),
		pod("host", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		pod("isolated", func(p *corev1.Pod) { p.Labels = map[string]string{"isolated": "yes"} }),
		pod("elsewhere", func(p *corev1.Pod) { p.Namespace = "other" }),
		pod("nowhere", func(p *corev1.Pod) { p.Namespace = "unheard-of" }),
		pod("done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded; injected(both)(p) }),
	)
	got := map[string]string{}
	for _, row := range r.Pods {
		got[row.Pod] = strings.TrimSpace(string(row.State) + " " + string(row.Reason) + strings.Join(row.Problems, "; "))
	}
	want := map[string]string{
		"plain":      "would-be-injected",
		"current":    "injected",
		"old-ip":     "outdated none of the nameservers 169.254.25.10 10.96.0.99 is the cluster DNS 10.96.0.10",
		"old-domain": "outdated the searches lack shop.svc.cluster.local",
		"not-first":  "outdated the first nameserver is 192.0.2.1, not the cache",
		"alone":      "injected",
		"host":       "skipped host-network",
		"isolated":   "skipped network-policy",
		"elsewhere":  "skipped not-enabled",
		"nowhere":    "skipped namespace-unknown",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if r.SafeToUninstall || r.Blocking != 5 {
		t.Errorf("safe to uninstall %t with %d Pods in the way", r.SafeToUninstall, r.Blocking)
	}
	if empty := build(t, pod("plain", nil)); !empty.SafeToUninstall {
		t.Error("not safe to uninstall with nobody injected")
	}
}

func TestOutput(t *testing.T) {
	r := build(t, pod("plain", nil), pod("current", injected([]string{"169.254.25.10", "10.96.0.10"}, "shop.svc.cluster.local")))
	var table, text bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NAMESPACE", "plain", "would-be-injected", "1 injected, 0 outdated, 1 would be injected, 0 skipped", "must stay: 1 Pods"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
