package webhook_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// However odd a Pod is: if the API takes it without the webhook, it takes it with the webhook.
func oddPods(t *testing.T, c *cluster) {
	c.namespace("plain", nil, nil)
	c.webhook("hook-a", 8443, "-cert-overlap=1s").await()
	c.untilInjected("shop")

	config := func(change func(*corev1.PodDNSConfig)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.DNSConfig = &corev1.PodDNSConfig{}; change(p.Spec.DNSConfig) }
	}
	searches := func(list ...string) func(*corev1.Pod) {
		return config(func(c *corev1.PodDNSConfig) { c.Searches = list })
	}
	servers := func(list ...string) func(*corev1.Pod) {
		return config(func(c *corev1.PodDNSConfig) { c.Nameservers = list })
	}
	options := func(list ...corev1.PodDNSConfigOption) func(*corev1.Pod) {
		return config(func(c *corev1.PodDNSConfig) { c.Options = list })
	}
	numbered := func(n int, pattern string) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf(pattern, i))
		}
		return list
	}
	annotated := func(bytes int) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{"a": strings.Repeat("x", bytes-1)} }
	}
	empty, seven := "", "7"
	accepted, taken := 0, 0
	for name, change := range map[string]func(*corev1.Pod){
		"empty config":               config(func(*corev1.PodDNSConfig) {}),
		"the cache as nameserver":    servers(localIP),
		"the cluster DNS":            servers("10.96.0.10"),
		"two alike":                  servers("192.0.2.1", "192.0.2.1"),
		"three":                      servers("192.0.2.1", "192.0.2.2", "192.0.2.3"),
		"four":                       servers(numbered(4, "192.0.2.%d")...),
		"IPv6":                       servers("2001:db8::53", "::ffff:192.0.2.1"),
		"a name as nameserver":       servers("dns.example"),
		"the root":                   searches("."),
		"a dot at the end":           searches("corp.example.", "corp.example"),
		"underscores":                searches("_tcp.corp.example"),
		"capitals":                   searches("Corp.Example"),
		"a search like ours":         searches("shop.svc.cluster.local", "cluster.local"),
		"an empty search":            searches(""),
		"29 searches":                searches(numbered(29, "d%d.example")...),
		"30 searches":                searches(numbered(30, "d%d.example")...),
		"32 searches":                searches(numbered(32, "d%d.example")...),
		"33 searches":                searches(numbered(33, "d%d.example")...),
		"20 long searches":           searches(numbered(20, strings.Repeat("a", 60)+"."+strings.Repeat("b", 36)+".x%d")...),
		"as long as the API takes":   searches(numbered(32, strings.Repeat("a", 57)+".x%02d")...),
		"an option without value":    options(corev1.PodDNSConfigOption{Name: "ndots"}),
		"an option with empty value": options(corev1.PodDNSConfigOption{Name: "ndots", Value: &empty}),
		"an option without name":     options(corev1.PodDNSConfigOption{Value: &seven}),
		"ndots twice":                options(corev1.PodDNSConfigOption{Name: "ndots", Value: &seven}, corev1.PodDNSConfigOption{Name: "ndots"}),
		"a thousand options":         options(slices.Repeat([]corev1.PodDNSConfigOption{{Name: "edns0"}}, 1000)...),
		"half of all annotations":    annotated(128 << 10),
		"nearly all annotations":     annotated(256<<10 - 50),
		"all annotations":            annotated(256 << 10),
		"too many annotations":       annotated(256<<10 + 1),
		"our mark by the user": func(p *corev1.Pod) {
			p.Labels = map[string]string{"node-local-dns-injection.nodedns.io/injected": "no"}
		},
		"our annotation by the user": func(p *corev1.Pod) {
			p.Annotations = map[string]string{"node-local-dns-injection.nodedns.io/replaced-dns-policy": "x"}
		},
		"an opt-in that is neither": func(p *corev1.Pod) { p.Labels = map[string]string{injectLabel: "maybe"} },
		"None without config":       func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSNone },
		"a policy that is none":     func(p *corev1.Pod) { p.Spec.DNSPolicy = "Sometimes" },
		"a node that is not there":  func(p *corev1.Pod) { p.Spec.NodeName = "nowhere" },
		"a selector of a thousand": func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{}
			for i := range 1000 {
				p.Spec.NodeSelector[fmt.Sprintf("k%d", i)] = "v"
			}
		},
		"a toleration of everything": func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} },
		"text that is not ASCII":     func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "\u00e9\u2028\"\\ \x7f"} },
		"a command with everything":  func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{`{"spec":{"dnsPolicy":"None"}}`, "\t\n\r"} },
	} {
		t.Run(name, func(t *testing.T) {
			create := func(namespace string) (*corev1.Pod, error) {
				return c.client.CoreV1().Pods(namespace).Create(t.Context(), pod(change), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			}
			_, without := create("plain")
			with, err := create("shop")
			if without == nil && err != nil {
				t.Errorf("taken without the webhook, refused with it: %v", err)
			}
			if err == nil {
				accepted++
				if injected(with) {
					taken++
				}
			}
		})
	}
	if accepted < 20 || taken < 15 {
		t.Errorf("only %d Pods were accepted, only %d of them injected", accepted, taken)
	}
	t.Run("as large as etcd takes", func(t *testing.T) { largestPod(t, c) })
}

// largestPod looks for the largest Pod that can be created without the webhook, and creates it with the webhook.
func largestPod(t *testing.T, c *cluster) {
	sized := func(bytes int) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			for i := range 10 {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "none", Env: []corev1.EnvVar{{Name: "E", Value: strings.Repeat("x", bytes/10)}}})
			}
		})
	}
	fits := func(namespace string, bytes int) error {
		_, err := c.client.CoreV1().Pods(namespace).Create(t.Context(), sized(bytes), metav1.CreateOptions{})
		return err
	}
	low, high := 1500<<10, 1536<<10
	if err := fits("plain", high); err == nil {
		t.Fatal("the API takes more than 1.5 MiB")
	}
	for high-low > 256 {
		if middle := (low + high) / 2; fits("plain", middle) == nil {
			low = middle
		} else {
			high = middle
		}
	}
	for _, size := range []int{low, low - 1<<10, low - 16<<10} {
		if err := errors.Join(fits("plain", size), fits("shop", size)); err != nil {
			t.Errorf("a Pod with %d bytes of text: %v", size, err)
		}
	}
	t.Logf("the largest Pod has %d bytes of text", low)
}
