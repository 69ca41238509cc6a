package readiness

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// All ready, on which the second nameserver is left out, means that every cache proves its backstop by being ready; one
// that does not keeps it in for all, its own node's Pods by themselves, and only while it is the node's ready cache.
func TestAllReadyNeedsTheBackstopProven(t *testing.T) {
	tracker := fleet(t, 40, 0, Config{Grace: time.Hour})
	wantState(t, tracker, `{}`, poddns.CachesAllReady)
	for name, path := range map[string]string{"no query": "/ready", "another": "/ready?need=lease", "beside it": "/need=backstop", "a part": "/ready?need=backstops"} {
		tracker.SetPod(cachePod("n7", true, func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe.HTTPGet.Path = path }))
		for _, spec := range []string{`{}`, `{"nodeName":"n7"}`, `{"nodeSelector":{"kubernetes.io/hostname":"n8"}}`} {
			if name == "no query" {
				wantState(t, tracker, spec, poddns.CachesReady) // from memory the second time
			}
			wantState(t, tracker, spec, poddns.CachesReady)
		}
		wantState(t, tracker, `{"nodeName":"n8"}`, poddns.CachesAllReady)
		if n := tracker.Summary().Unproven; n != 1 {
			t.Errorf("%s: %d nodes unproven", name, n)
		}
		tracker.SetPod(cachePod("n7", true, func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe.HTTPGet.Path = "/ready?a=b&need=backstop" }))
		wantState(t, tracker, `{"nodeSelector":{"kubernetes.io/hostname":"n8"}}`, poddns.CachesAllReady)
		wantState(t, tracker, `{}`, poddns.CachesAllReady)
	}
	tracker.SetPod(cachePod("n7", false)) // being replaced: what it set up stands
	wantState(t, tracker, `{}`, poddns.CachesAllReady)
	tracker.SetPod(cachePod("n7", true, func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe = nil }))
	wantState(t, tracker, `{}`, poddns.CachesReady)
	tracker.DeleteNode("n7")
	wantState(t, tracker, `{}`, poddns.CachesAllReady)
	if n := tracker.Summary().Unproven; n != 0 {
		t.Errorf("%d nodes unproven at the end", n)
	}
}
