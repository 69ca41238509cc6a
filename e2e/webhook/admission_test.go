package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/bed"
)

// What the webhook is for, and what must not happen, on a real API server.
func admission(t *testing.T, c *cluster) {
	c.namespace("plain", nil, nil)
	c.namespace("out", map[string]string{injectLabel: "disabled"}, nil)
	hook := c.webhook("hook-a", 8443, "-cert-overlap=1s", "-replace-grace=0s").await()
	c.untilInjected("shop")

	t.Run("a Pod in a labelled namespace is mutated", func(t *testing.T) {
		p := c.create("shop", pod())
		ndots := "5"
		want := &corev1.PodDNSConfig{
			Nameservers: []string{localIP, bed.DNSServiceIP},
			Searches:    []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"},
			Options:     []corev1.PodDNSConfigOption{{Name: "ndots", Value: &ndots}},
		}
		if diff := cmp.Diff(want, p.Spec.DNSConfig); diff != "" || p.Spec.DNSPolicy != corev1.DNSNone {
			t.Errorf("policy %s, -want +got:\n%s", p.Spec.DNSPolicy, diff)
		}
		if p.Labels["node-local-dns-injection.nodedns.io/injected"] != "true" || p.Annotations["node-local-dns-injection.nodedns.io/replaced-dns-policy"] != "ClusterFirst" {
			t.Errorf("labels %v, annotations %v", p.Labels, p.Annotations)
		}
	})
	unchanged := func(t *testing.T, namespace string, change ...func(*corev1.Pod)) {
		t.Helper()
		want := pod(change...)
		p := c.create(namespace, pod(change...))
		if injected(p) || len(p.Annotations) != len(want.Annotations) || len(p.Labels) != len(want.Labels) || p.Spec.DNSConfig != nil {
			t.Errorf("changed: policy %s, config %v, labels %v, annotations %v", p.Spec.DNSPolicy, p.Spec.DNSConfig, p.Labels, p.Annotations)
		}
	}
	t.Run("a Pod in an unlabelled namespace is not", func(t *testing.T) { unchanged(t, "plain") })
	t.Run("a Pod in an opted-out namespace is not", func(t *testing.T) { unchanged(t, "out") })
	t.Run("W02 our own Pods and the system's are not", func(t *testing.T) {
		c.namespace(ownNamespace, nil, nil)
		c.kubectl("label", "namespace", "--overwrite", ownNamespace, injectLabel+"=enabled")
		c.kubectl("label", "namespace", "kube-system", injectLabel+"=enabled")
		for _, ns := range []string{"kube-system", ownNamespace} {
			p := pod(func(p *corev1.Pod) {
				yes, no, user := true, false, int64(1000)
				p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
				p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
			})
			if injected(c.create(ns, p)) {
				t.Errorf("a Pod in %s was injected", ns)
			}
		}
	})
	t.Run("what selectors and conditions leave out is not", func(t *testing.T) {
		for name, change := range map[string]func(*corev1.Pod){
			"opted out":    func(p *corev1.Pod) { p.Labels = map[string]string{injectLabel: "disabled"} },
			"host network": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
			"Default":      func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault },
		} {
			t.Run(name, func(t *testing.T) { unchanged(t, "shop", change) })
		}
	})
	t.Run("W13 host network with cluster DNS is", func(t *testing.T) {
		p := c.create("shop", pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true; p.Spec.DNSPolicy = corev1.DNSClusterFirstWithHostNet }))
		if !injected(p) {
			t.Error("not injected")
		}
	})
	t.Run("W09 a dry run is answered alike and stores nothing", func(t *testing.T) {
		p, err := c.dryRun(t.Context(), "shop")
		if err != nil || !injected(p) {
			t.Errorf("error %v, Pod %v", err, p)
		}
		if out := c.kubectl("-n", "shop", "run", "--dry-run=server", "-o", "jsonpath={.spec.dnsConfig.nameservers[0]}", "--image=none", "dry"); out != localIP {
			t.Errorf("kubectl --dry-run=server: %s", out)
		}
		if _, err := c.client.CoreV1().Pods("shop").Get(t.Context(), "dry", metav1.GetOptions{}); err == nil {
			t.Error("the dry run was stored")
		}
	})
	t.Run("W15 a Pod as large as the API takes", func(t *testing.T) {
		big := pod(func(p *corev1.Pod) {
			// etcd takes 1.5 MiB for all of it; text that repeats would be no smaller.
			for i := range 140 {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "none",
					Env: []corev1.EnvVar{{Name: "E", Value: strings.Repeat("x", 10_000)}}})
			}
		})
		begin := time.Now()
		if p := c.create("shop", big); !injected(p) {
			t.Error("not injected")
		}
		t.Logf("a Pod of %d bytes took %s", big.Size(), time.Since(begin))
	})
	t.Run("namespace annotations tune, wrong ones warn", func(t *testing.T) {
		c.namespace("tuned", enabled(), map[string]string{"node-local-dns-injection.nodedns.io/ndots": "2", "node-local-dns-injection.nodedns.io/timeout": "never"})
		c.until("the tuned namespace to be known", func(ctx context.Context) error {
			p, err := c.dryRun(ctx, "tuned")
			if err == nil && (!injected(p) || *p.Spec.DNSConfig.Options[0].Value != "2") {
				err = fmt.Errorf("it has %v", p.Spec.DNSConfig)
			}
			return err
		})
		if out := c.kubectl("-n", "tuned", "run", "--image=none", "warned"); !strings.Contains(out, "want a number from 1 to 30") {
			t.Errorf("no warning: %s", out)
		}
	})
	t.Run("the example policy lets Pods be injected that a policy kept from the cache", func(t *testing.T) {
		c.namespace("guarded", enabled(), nil)
		deny := c.cp.Workspace().Path("deny.yaml")
		if err := os.WriteFile(deny, []byte("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny}\nspec: {podSelector: {}, policyTypes: [Egress]}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.untilInjected("guarded")
		c.kubectl("-n", "guarded", "apply", "-f", deny)
		c.until("Pods to be left as they are", func(ctx context.Context) error {
			p, err := c.dryRun(ctx, "guarded")
			if err == nil && injected(p) {
				err = errors.New("one was injected")
			}
			return err
		})
		if out := c.kubectl("-n", "guarded", "run", "--image=none", "warned"); !strings.Contains(out, "a NetworkPolicy does not allow egress") {
			t.Errorf("no warning: %s", out)
		}
		c.kubectl("-n", "guarded", "apply", "-f", manifests+"webhook/examples/network-policy.yaml")
		c.untilInjected("guarded")
	})
	t.Run("the metrics of the alerts are there", func(t *testing.T) {
		rules, err := os.ReadFile(manifests + "monitoring/rules.yaml")
		if err != nil {
			t.Fatal(err)
		}
		text := hook.metrics()
		names := regexp.MustCompile(`nodedns_webhook_[a-z_]+`).FindAllString(string(rules), -1)
		for _, name := range names {
			if !strings.Contains(text, "\n"+name+" ") {
				t.Errorf("%s is not exported", name)
			}
		}
		if len(names) < 5 {
			t.Errorf("only %d metrics in the rules", len(names))
		}
	})
	t.Run("the audit log has the reason", func(t *testing.T) {
		c.until("the audit log", func(context.Context) error {
			if text := tail(c.cp.AuditLog()); !strings.Contains(text, `"inject.nodedns.io/reason":"injected"`) {
				return fmt.Errorf("no reason in the audit log")
			}
			return nil
		})
	})
	t.Run("a Pod created while no cache is ready is left as it is", func(t *testing.T) {
		for i := range 3 {
			c.cache(fmt.Sprintf("n%d", i), false)
		}
		c.until("the breaker to open", func(context.Context) error {
			if !strings.Contains(hook.metrics(), "\nnodedns_webhook_breaker_open 1\n") {
				return fmt.Errorf("closed")
			}
			return nil
		})
		unchanged(t, "shop")
		for i := range 3 {
			c.cache(fmt.Sprintf("n%d", i), true)
		}
		c.untilInjected("shop")
		events := c.kubectl("-n", ownNamespace, "get", "events", "-o", "custom-columns=R:.reason,M:.message")
		if !strings.Contains(events, "CachesNotReady") {
			t.Errorf("no Event about the breaker:\n%s", events)
		}
	})
	t.Run("deleting the webhook does not stop Pod creation", func(t *testing.T) {
		if err := hook.process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-hook.process.Done()
		begin := time.Now()
		unchanged(t, "shop") // while its endpoint is still there, or just after
		c.endpointGone("hook-a")
		unchanged(t, "shop") // with no endpoint at all
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("two Pods took %s", took)
		}
	})
}

func tail(path string) string { return hostTail(path, 4000) }
