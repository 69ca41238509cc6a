package webhook_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/bed"
)

// applyTainting applies everything with the component that takes startup taints away.
func applyTainting(c *cluster) {
	c.t.Helper()
	folder := c.cp.Workspace().Path("overlay")
	top, err := filepath.Abs(manifests)
	if err == nil {
		top, err = filepath.Rel(folder, top) // kustomize takes no absolute path
	}
	if err == nil {
		err = os.Mkdir(folder, 0o755)
	}
	text := fmt.Sprintf("resources: [%[1]s/self-managed]\ncomponents: [%[1]s/webhook/startup-taint]\n", top)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("apply", "-k", folder)
	c.kubectl("apply", "-f", "testdata/bootstrap.yaml")
}

// An empty cluster in which every node registers with the startup taint starts: scheduler, controllers and API server are
// real, what kubelets would write the test writes. The cache's and the network plugin's Pods are put on nodes that are not
// ready, webhook and cluster DNS on nodes that wait for their cache, workloads only where the taint has gone; and so
// again on a node that has booted anew and registered anew.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	c := newClusterWith(t, bed.Config{Name: "bootstrap", ControllerArgs: []string{"--node-monitor-grace-period=10m"}}, applyTainting)
	for _, name := range []string{"n0", "n1"} {
		c.register(name, "boot-1")
	}
	c.bound("the caches on nodes that are not ready", "kube-system", "k8s-app=nodedns-cache", 2)
	c.bound("the network plugin on nodes that are not ready", "kube-system", "app=network", 2)
	for _, name := range []string{"n0", "n1"} {
		c.nodeReady(name, "boot-1") // its network is there
		c.until("the startup taint to be the only one on "+name, func(context.Context) error {
			if taints := c.taints(name); !slices.Equal(taints, []string{startupTaint}) {
				return fmt.Errorf("there are %q", taints)
			}
			return nil
		})
	}
	c.bound("the webhook on nodes that wait for their cache", ownNamespace, "app.kubernetes.io/name=nodedns-webhook", 2)
	c.refused("cluster DNS that does not tolerate the taint", "kube-system", "k8s-app=kube-dns")
	c.kubectl("-n", "kube-system", "patch", "deployment", "coredns", "--type=json", "--patch-file="+manifests+"webhook/startup-taint/cluster-dns.json")
	c.bound("cluster DNS on nodes that wait for their cache", "kube-system", "k8s-app=kube-dns", 2)
	c.refused("a workload", "shop", "app=web")

	c.webhook("hook-a", 8443, "-cert-overlap=1s", "-startup-taint="+startupTaint).await()
	for i, name := range []string{"n0", "n1"} {
		if !slices.Contains(c.taints(name), startupTaint) {
			t.Fatalf("%s has lost its taint before its cache was ready", name)
		}
		c.cacheOn(name, "one", true)
		c.untainted(name)
		if i == 0 {
			c.bound("the workload, where the cache is ready", "shop", "app=web", 2)
		}
	}
	c.untilInjected("shop")

	t.Log("n1 boots anew and registers again; its Pods' status is still that from before")
	old := c.podOn("kube-system", "k8s-app=nodedns-cache", "n1")
	if err := c.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.register("n1", "boot-2")
	c.nodeReady("n1", "boot-2")
	waiting := c.create("shop", pod(onlyOn("n1"), func(p *corev1.Pod) { p.Labels = map[string]string{"app": "waiting"} }))
	c.refused("a workload", "shop", "app=waiting")
	now := int64(0)
	if err := c.client.CoreV1().Pods("kube-system").Delete(t.Context(), old.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	c.until("another cache to be put on the node", func(context.Context) error {
		if p := c.podOn("kube-system", "k8s-app=nodedns-cache", "n1"); p == nil || p.UID == old.UID {
			return fmt.Errorf("there is %v", p)
		}
		return nil
	})
	if !slices.Contains(c.taints("n1"), startupTaint) {
		t.Error("n1 has lost its taint before its new cache was ready")
	}
	c.cacheOn("n1", "two", true)
	c.untainted("n1")
	c.bound("the waiting workload", "shop", "app=waiting", 1)
	if !injected(waiting) {
		t.Error("a Pod that could only land on the node once its cache was ready was not injected")
	}
}

func onlyOn(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

// register makes a Node as kubelet does with -register-with-taints, before it has a network.
func (c *cluster) register(name, boot string) {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelHostname: name}}}
	node.Spec.Taints = []corev1.Taint{{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{BootID: boot, OperatingSystem: "linux", Architecture: "amd64"}
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")}
	node.Status.Allocatable = node.Status.Capacity
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	if _, err := c.client.CoreV1().Nodes().Create(c.t.Context(), node, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// nodeReady says of a Node, as its kubelet would, that it is ready in that boot.
func (c *cluster) nodeReady(name, boot string) {
	c.t.Helper()
	node, err := c.client.CoreV1().Nodes().Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.patchStatus("nodes", "", name, map[string]any{
		"nodeInfo": map[string]any{"bootID": boot},
		"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: node.Status.Conditions[0].LastTransitionTime}},
	})
}

// bound waits until n Pods are bound to nodes by the scheduler.
func (c *cluster) bound(what, namespace, selector string, n int) {
	c.t.Helper()
	c.until(what, func(ctx context.Context) error {
		pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		var state []string
		is := 0
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.Spec.NodeName != "" {
				is++
			}
			state = append(state, p.Name+" on "+p.Spec.NodeName+": "+scheduling(p))
		}
		if is < n {
			return fmt.Errorf("%d of %d are: %s", is, n, strings.Join(state, "; "))
		}
		return nil
	})
}

// refused waits until the scheduler has said of such a Pod that no node takes it because of a taint; none may be bound.
func (c *cluster) refused(what, namespace, selector string) {
	c.t.Helper()
	c.until(what+" to be refused", func(ctx context.Context) error {
		pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		var said []string
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.Spec.NodeName != "" {
				c.t.Fatalf("%s: %s was bound to %s", what, p.Name, p.Spec.NodeName)
			}
			if strings.Contains(scheduling(p), "untolerated taint") {
				return nil
			}
			said = append(said, scheduling(p))
		}
		return fmt.Errorf("%d Pods, none refused for that: %q", len(pods.Items), said)
	})
}

// scheduling is what the scheduler says of a Pod.
func scheduling(p *corev1.Pod) string {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			return condition.Message
		}
	}
	return ""
}

func (c *cluster) podOn(namespace, selector, node string) *corev1.Pod {
	c.t.Helper()
	pods, err := c.client.CoreV1().Pods(namespace).List(c.t.Context(), metav1.ListOptions{LabelSelector: selector, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil {
			return &pods.Items[i]
		}
	}
	return nil
}

// cacheOn says of the cache on a node, as kubelet would, that its container of that name is ready or not.
func (c *cluster) cacheOn(node, container string, ready bool) {
	c.t.Helper()
	p := c.podOn("kube-system", "k8s-app=nodedns-cache", node)
	if p == nil {
		c.t.Fatalf("no cache on %s", node)
	}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	c.patchStatus("pods", "kube-system", p.Name, map[string]any{"phase": "Running",
		"conditions":        []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}},
		"containerStatuses": []corev1.ContainerStatus{{Name: "cache", ContainerID: "containerd://" + container, Image: "x", ImageID: "x", Ready: ready}}})
}

func (c *cluster) untainted(node string) {
	c.t.Helper()
	c.until("the taint to go from "+node, func(context.Context) error {
		if taints := c.taints(node); slices.Contains(taints, startupTaint) {
			return fmt.Errorf("there are %q", taints)
		}
		return nil
	})
}
