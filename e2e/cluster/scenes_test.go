package cluster_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/cluster"
	"github.com/nodedns/nodedns/e2e/host"
)

// testClients: a Pod resolves the same names with the resolvers of glibc, musl and Go, by search list and in full, and
// those that do not exist fail in each.
func testClients(t *testing.T, env *cluster.Env) {
	if err := env.CreateNamespace(t.Context(), "clients", cluster.InjectLabel()); err != nil {
		t.Fatal(err)
	}
	pod, err := env.CreatePod(t.Context(), cluster.PodSpec{Namespace: "clients", Name: "client", Node: "node2"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"kube-dns.kube-system":                   bed.DNSServiceIP,
		"kube-dns.kube-system.svc.cluster.local": bed.DNSServiceIP,
		strings.TrimSuffix(bed.OutsideName, "."): bed.OutsideIP,
	}
	for _, client := range [][]string{{"lookup-glibc"}, {"lookup-musl"}, {"bed-client", "lookup"}} {
		for name, address := range want {
			out, err := pod.Exec(t.Context(), nil, append(client, name)...)
			if err != nil || strings.TrimSpace(out) != name+" "+address {
				t.Errorf("%s: %q, %v; want the address %s", client, out, err, address)
			}
		}
		if out, err := pod.Exec(t.Context(), nil, append(client, "nobody.nowhere")...); err == nil {
			t.Errorf("%s: a name that does not exist resolves: %q", client, out)
		}
	}
}

// testBackstopProven: with kube-proxy in IPVS mode a cache that is ready proves, when asked, that its backstop lasts; it is
// what the webhook's -fallback-nameserver=auto waits for.
func testBackstopProven(t *testing.T, env *cluster.Env) {
	for _, node := range env.Nodes {
		out, err := node.Agent.Run(t.Context(), "busybox", "wget", "-q", "-O", "-", "http://"+cluster.LocalIP+":8181/ready?need=backstop")
		if err != nil || !strings.HasPrefix(out, "OK\n") {
			t.Errorf("%s: %q, %v", node.Name, out, err)
		}
	}
}

// testNotInjected: Pods in a namespace without the label, and Pods that opt out in one with it, stay as they are.
func testNotInjected(t *testing.T, env *cluster.Env) {
	if err := env.CreateNamespace(t.Context(), "plain", nil); err != nil {
		t.Fatal(err)
	}
	for _, s := range []cluster.PodSpec{
		{Namespace: "plain", Name: "unlabelled", Node: "node2"},
		{Namespace: "clients", Name: "opted-out", Node: "node2", Labels: map[string]string{"node-local-dns-injection": "disabled"}},
	} {
		pod, err := env.CreatePod(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if p := pod.Object.Spec; p.DNSPolicy != corev1.DNSClusterFirst || p.DNSConfig != nil {
			t.Errorf("%s: dnsPolicy %s, dnsConfig %v", s.Name, p.DNSPolicy, p.DNSConfig)
		}
		out, err := pod.Exec(t.Context(), nil, "cat", "/etc/resolv.conf")
		if err != nil || strings.Contains(out, cluster.LocalIP) || !strings.Contains(out, "nameserver "+bed.DNSServiceIP) {
			t.Errorf("%s: resolv.conf %q, %v", s.Name, out, err)
		}
	}
}

// testCacheAway: with the cache's DaemonSet deleted, which no Pod can see coming, a Pod that has the cache's address in
// its resolv.conf loses nothing, and one that is created afterwards resolves too: the backstop stays.
func testCacheAway(t *testing.T, env *cluster.Env) {
	ctx := t.Context()
	pod, err := env.CreatePod(ctx, cluster.PodSpec{Namespace: "clients", Name: "stays", Node: "node2"})
	if err != nil {
		t.Fatal(err)
	}
	l := pod.StartLoad(ctx, "-rate=60", "-limit=5m")
	// Some seconds in which the cache answers, before it goes.
	select {
	case <-time.After(4 * time.Second):
	case <-ctx.Done():
	}
	_, err = env.Kubectl(ctx, "-n", "kube-system", "delete", "daemonset", "nodedns-cache", "--cascade=foreground", "--timeout=120s")
	if err != nil {
		t.Error(err)
	}
	late, createErr := env.CreatePod(ctx, cluster.PodSpec{Namespace: "clients", Name: "late", Node: "node2"})
	r, err := l.Stop()
	if err := errors.Join(createErr, err); err != nil {
		t.Fatal(err)
	}
	if r.Failed > 2 || r.By["cache"] == 0 || r.By["cluster_dns"] == 0 {
		t.Errorf("%d of %d questions failed (%v) while the cache was deleted; answered by %v", r.Failed, r.Queries, r.Errors, r.By)
	}
	if out, err := late.Exec(ctx, nil, "lookup-glibc", "kube-dns.kube-system", strings.TrimSuffix(bed.OutsideName, ".")); err != nil {
		t.Errorf("a Pod created without any cache: %q, %v", out, err)
	}
}

// traces are lines of a node's rules, sets, links and routes that are ours.
func traces(t *testing.T, node *bed.Node) string {
	t.Helper()
	out, err := node.Agent.Run(t.Context(), "sh", "-ec", `
all=$(iptables-save; ip6tables-save; ipset list -n; ip -o link; ip route show table local)
echo "$all" | grep -e nodedns -e nodelocaldns -e 169.254.25.10 || true`)
	if err != nil {
		t.Fatalf("looking at %s: %v: %s", node.Name, err, out)
	}
	return out
}

// testUninstall follows the README: what a Pod still has in its resolv.conf stays on its node, however often somebody asks to
// remove it, and goes with that Pod.
func testUninstall(t *testing.T, env *cluster.Env) {
	ctx := t.Context()
	run := func(args ...string) string {
		t.Helper()
		out, err := env.Kubectl(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	run("delete", "mutatingwebhookconfiguration", "nodedns-webhook")
	run("delete", "--ignore-not-found", "--timeout=120s", "-k", env.Manifests("self-managed"))
	for _, node := range env.Nodes {
		if traces(t, node) == "" {
			t.Errorf("%s: nothing is there to be removed", node.Name)
		}
	}
	run("apply", "-k", env.Manifests("uninstall"))
	clean, used := env.Nodes[0], env.Nodes[1] // all Pods with the address are on this one
	err := host.Until(ctx, clean.Name+" to be clean", 2*time.Minute, func(context.Context) error {
		if left := traces(t, clean); left != "" {
			return errors.New(left)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	err = host.Until(ctx, "the check to name the Pods", time.Minute, func(context.Context) error {
		out, err := env.Kubectl(ctx, "-n", "kube-system", "logs", "-l", "k8s-app=nodedns-uninstall", "-c", "check", "--tail=-1")
		if err == nil && (!strings.Contains(out, "clients/stays") || !strings.Contains(out, "demo/client")) {
			err = errors.New(out)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if traces(t, used) == "" {
		t.Errorf("%s has been cleaned while Pods there have the address", used.Name)
	}
	run("delete", "namespace", "demo", "clients", "--timeout=120s")
	run("-n", "kube-system", "rollout", "status", "daemonset/nodedns-uninstall", "--timeout=180s")
	for _, node := range env.Nodes {
		if left := traces(t, node); left != "" {
			t.Errorf("%s after uninstalling:\n%s", node.Name, left)
		}
	}
	run("delete", "--timeout=60s", "-k", env.Manifests("uninstall"))
	pod, err := env.CreatePod(ctx, cluster.PodSpec{Namespace: "plain", Name: "afterwards", Node: used.Name})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := pod.Exec(ctx, nil, "lookup-glibc", "kube-dns.kube-system"); err != nil {
		t.Errorf("a Pod after uninstalling: %q, %v", out, err)
	}
}
