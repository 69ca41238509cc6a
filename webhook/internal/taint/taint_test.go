package taint

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

const key = "node-local-dns/not-ready"

func tainted(name string, keys ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, k := range keys {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoSchedule})
	}
	return node
}

func TestTaintGoesWhenTheCacheIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := []*corev1.Node{tainted("ready", "other", key, "third"), tainted("waiting", key), tainted("foreign", "other")}
		client := fake.NewClientset(nodes[0], nodes[1], nodes[2])
		var waitingIsReady atomic.Bool
		ready := func(node string) bool { return node != "waiting" || waitingIsReady.Load() }
		list := func() []*corev1.Node {
			all, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return nil
			}
			var out []*corev1.Node
			for i := range all.Items {
				out = append(out, &all.Items[i])
			}
			return out
		}
		c, err := New(Config{Key: key}, list, ready, client.CoreV1().Nodes(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		want := func(want map[string][]string) {
			t.Helper()
			got := map[string][]string{}
			for _, node := range list() {
				for _, taint := range node.Spec.Taints {
					got[node.Name] = append(got[node.Name], taint.Key)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		}
		want(map[string][]string{"ready": {"other", "third"}, "waiting": {key}, "foreign": {"other"}})
		time.Sleep(500 * time.Millisecond)
		waitingIsReady.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		want(map[string][]string{"ready": {"other", "third"}, "foreign": {"other"}})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestConfigValidate(t *testing.T) {
	for _, good := range []string{key, "startup-taint.cluster-autoscaler.kubernetes.io/node-local-dns"} {
		if err := (Config{Key: good}).Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []Config{{}, {Key: "a b"}, {Key: key, Interval: -1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
