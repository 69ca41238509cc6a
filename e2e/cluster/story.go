package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/archive"
	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/host"
)

// LocalIP is the address of every node's cache.
const LocalIP = "169.254.25.10"

// maxExcess is how many questions three SIGKILLs may cost beyond the baseline's rate.
const maxExcess = 3

// Report is what the whole story showed.
type Report struct {
	// KubeProxyMode is what kube-proxy on the Pod's node says of itself.
	KubeProxyMode string `json:"kube_proxy_mode"`
	// PodNameservers are those of the resolv.conf that kubelet wrote for the Pod.
	PodNameservers []string `json:"pod_nameservers"`
	// ResolvConf is that file.
	ResolvConf string `json:"pod_resolv_conf"`
	// ResolvedByCache says that the cache on the Pod's node counted the Pod's questions.
	ResolvedByCache bool `json:"resolved_by_cache"`
	// CacheQueries and CacheHits are what the cache counted for the two lookups of each name.
	CacheQueries int `json:"cache_queries"`
	CacheHits    int `json:"cache_hits"`
	// Lookups are the names asked and their addresses.
	Lookups map[string]string `json:"lookups"`
	// OutsideAsked is how often the resolver outside the cluster was asked for OutsideName, which the Pod looked up twice.
	OutsideAsked int `json:"outside_asked"`
	// Sigkill is what three SIGKILLs to the cache cost.
	Sigkill KillResult `json:"sigkill"`
	// Seconds is the time from the first line to the last.
	Seconds float64 `json:"seconds"`
}

// Problems lists what the report says that must not be; nil if the story went as it should.
func (r Report) Problems() error {
	var out []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			out = append(out, fmt.Errorf(format, args...))
		}
	}
	check(r.KubeProxyMode == "ipvs", "kube-proxy says that its mode is %q, not ipvs", r.KubeProxyMode)
	check(slices.Equal(r.PodNameservers, []string{LocalIP, bed.DNSServiceIP}),
		"the Pod's nameservers are %q, not the cache and then the cluster DNS", r.PodNameservers)
	check(r.ResolvedByCache, "the node's cache did not count the Pod's questions")
	check(r.CacheHits >= 2, "the node's cache counted %d hits for two repeated questions", r.CacheHits)
	check(r.OutsideAsked == 1, "the resolver outside was asked %d times for a name that the Pod looked up twice", r.OutsideAsked)
	k := r.Sigkill
	check(k.Kills == 3, "%d kills instead of 3", k.Kills)
	check(k.Queries >= 1000 && k.RatePerSec >= 100, "only %d questions at %d a second", k.Queries, k.RatePerSec)
	check(k.Excess() <= maxExcess, "%d of %d questions failed, %.1f beyond the baseline's rate; at most %d may",
		k.Failed, k.Queries, k.Excess(), maxExcess)
	check(k.AnsweredBy["cache"] > 0 && k.AnsweredBy["cluster_dns"] > 0,
		"both should have answered, the cache while it lived and the cluster DNS while it did not: %v", k.AnsweredBy)
	check(k.BaselineBy["cache"] == 0, "answers to the plain ClusterIP count as the cache's: %v", k.BaselineBy)
	return errors.Join(out...)
}

// Tell runs the whole story in a cluster that has just started.
func (e *Env) Tell(ctx context.Context) (r Report, err error) {
	const namespace = "demo"
	node := e.Nodes[1] // the cluster DNS is on the other one
	if r.KubeProxyMode, err = node.ProxyMode(ctx); err != nil {
		return r, err
	}
	e.con.Step("kube-proxy on %s says: %s", node.Name, r.KubeProxyMode)
	if err := e.Install(ctx); err != nil {
		return r, err
	}
	e.con.Step("creating the namespace %s with the label node-local-dns-injection=enabled, and a Pod in it", namespace)
	if err := e.CreateNamespace(ctx, namespace, InjectLabel()); err != nil {
		return r, err
	}
	if err := e.WaitInjecting(ctx, namespace); err != nil {
		return r, err
	}
	pod, err := e.CreatePod(ctx, PodSpec{Namespace: namespace, Name: "client", Node: node.Name})
	if err != nil {
		return r, err
	}
	if err := e.showResolution(ctx, pod, node, &r); err != nil {
		return r, err
	}
	for range 2 {
		r.Sigkill, err = e.KillCache(ctx, pod, node, KillConfig{Kills: 3, Rate: 100, Calm: 3 * time.Second, Baseline: 15 * time.Second})
		if err != nil || r.Sigkill.Excess() <= maxExcess || !r.Sigkill.Crowded() {
			break
		}
		e.con.Step("questions that failed were sent all at once, after this machine had stood still: measuring once more")
	}
	return r, err
}

// showResolution looks at the Pod's resolv.conf and resolves a cluster name and an outside name, each twice.
func (e *Env) showResolution(ctx context.Context, pod *Pod, node *bed.Node, r *Report) (err error) {
	if r.ResolvConf, err = pod.Exec(ctx, nil, "cat", "/etc/resolv.conf"); err != nil {
		return err
	}
	r.PodNameservers = nameservers(r.ResolvConf)
	e.con.Step("/etc/resolv.conf of the Pod:")
	for line := range strings.Lines(strings.TrimSpace(r.ResolvConf)) {
		e.con.Plain("           %s", strings.TrimSpace(line))
	}
	r.Lookups = make(map[string]string)
	outside := e.Outside.Asked(bed.OutsideName)
	for _, round := range []string{"first", "second"} {
		before, err := e.CacheMetrics(ctx, node)
		if err != nil {
			return err
		}
		// The final dot keeps the search list out: one question for each name.
		for _, name := range []string{"kube-dns.kube-system.svc." + bed.ClusterDomain + ".", bed.OutsideName} {
			out, err := pod.Exec(ctx, nil, "bed-client", "lookup", name)
			if err != nil {
				return err
			}
			r.Lookups[name] = strings.TrimSpace(strings.TrimPrefix(out, name))
			e.con.Step("the Pod resolves %s", strings.TrimSpace(out))
		}
		after, err := e.CacheMetrics(ctx, node)
		if err != nil {
			return err
		}
		delta := func(metric string, labels ...string) int {
			return int(after.Sum(metric, labels...) - before.Sum(metric, labels...))
		}
		queries := delta("coredns_dns_requests_total", `type="A"`)
		hits := delta("coredns_cache_hits_total")
		e.con.Step("  %s time: the cache on %s counts %d questions and %d hits", round, node.Name, queries, hits)
		r.CacheQueries += queries
		r.CacheHits += hits
	}
	r.ResolvedByCache = r.CacheQueries >= 4
	r.OutsideAsked = e.Outside.Asked(bed.OutsideName) - outside
	return nil
}

// WaitInjecting waits until a Pod that is created in the namespace would be injected.
func (e *Env) WaitInjecting(ctx context.Context, namespace string) error {
	err := host.Until(ctx, "the webhook to inject", 60*time.Second, func(ctx context.Context) error {
		return e.WouldInject(ctx, namespace, true)
	})
	if err == nil {
		return nil
	}
	out, logErr := e.Kubectl(ctx, "-n", webhookNamespace, "logs", "--tail=30", "--prefix", "-l", "app.kubernetes.io/name="+webhookName)
	return errors.Join(err, fmt.Errorf("log of the webhook:\n%s", out), logErr)
}

// WouldInject returns an error unless a Pod that is created in the namespace would be injected, or would not. It creates
// none: a dry run passes the webhook too.
func (e *Env) WouldInject(ctx context.Context, namespace string, want bool) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "dry-run"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: archive.ClientImage}}},
	}
	p, err := e.Client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return fmt.Errorf("trying to create a Pod: %w", err)
	}
	if is := p.Spec.DNSConfig != nil && slices.Contains(p.Spec.DNSConfig.Nameservers, LocalIP); is != want {
		return fmt.Errorf("a Pod would get dnsPolicy %s and dnsConfig %v", p.Spec.DNSPolicy, p.Spec.DNSConfig)
	}
	return nil
}
