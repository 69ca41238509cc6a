package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/nodedns/nodedns/e2e/bed"
)

const (
	manyNodes  = 5000
	memoryGoal = 96 << 20
	addedGoal  = 5 * time.Millisecond
)

// realNode is as large as kubelet makes one: what a Node lists of images is most of it.
func realNode(i int) *corev1.Node {
	name := fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1.compute.example", i>>16, i>>8&255, i&255)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelHostname: name,
		corev1.LabelTopologyZone: fmt.Sprintf("eu-central-1%c", 'a'+i%3), corev1.LabelTopologyRegion: "eu-central-1",
		corev1.LabelInstanceTypeStable: "m7i.4xlarge", "node.example/pool": fmt.Sprintf("pool-%d", i%20), "node.example/image": "debian-12",
		"node.example/lifecycle": "spot", "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
	}, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true", "csi.volume.kubernetes.io/nodeid": fmt.Sprintf(`{"ebs.csi.example":"i-%016x"}`, i)}}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{BootID: fmt.Sprintf("0b0f3ab8-1f5c-4c62-9f0e-%012x", i), MachineID: fmt.Sprintf("%032x", i), SystemUUID: fmt.Sprintf("%032x", i),
		OperatingSystem: "linux", Architecture: "amd64", KernelVersion: "6.1.0-32-cloud-amd64", OSImage: "Debian GNU/Linux 12 (bookworm)", ContainerRuntimeVersion: "containerd://2.1.1", KubeletVersion: "v1.37.2"}
	for j := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: int64(j) << 20, Names: []string{
			fmt.Sprintf("registry.example/team-%d/service-%d@sha256:%064x", j%7, j, i*j), fmt.Sprintf("registry.example/team-%d/service-%d:v1.%d.0", j%7, j, i%40)}})
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: "KubeletReason", Message: "kubelet says so"})
	}
	return n
}

func cachePod(node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "nodedns-cache-" + node, Labels: map[string]string{"k8s-app": "nodedns-cache"}}}
	p.Spec.NodeName = node
	p.Spec.HostNetwork = true
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	p.Spec.Containers = []corev1.Container{{Name: "cache", Image: "docker.io/nodedns/cache:dev", Args: []string{"-localip=169.254.25.10", "-conf=/etc/coredns/Corefile"}}}
	return p
}

// manyNodes makes Nodes with a ready cache each. Both sides are spared JSON, which is most of the work otherwise.
func (c *cluster) manyNodes(t *testing.T) {
	t.Helper()
	config := c.cp.RESTConfig()
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	nodes, pods := client.CoreV1().Nodes(), client.CoreV1().Pods("kube-system")
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(64)
	for i := range manyNodes {
		group.Go(func() error {
			node := realNode(i)
			if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil {
				return err
			}
			pod, err := pods.Create(ctx, cachePod(node.Name), metav1.CreateOptions{})
			if err != nil {
				return err
			}
			pod.Status = corev1.PodStatus{
				Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "cache", ContainerID: fmt.Sprintf("containerd://%064x", 1), Image: "x", ImageID: "x", Ready: true}},
			}
			_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// At 5,000 nodes the webhook fits its memory, decides fast, and adds little to a Pod creation.
func TestFiveThousandNodes(t *testing.T) {
	c := newCluster(t, bed.Config{Name: "scale", APIServerArgs: []string{
		"--disable-admission-plugins=TaintNodesByCondition", // the node controller, which would lift the taint, does not run
	}}, "self-managed")
	c.namespace("shop", enabled(), nil)
	c.namespace("plain", nil, nil)
	c.namespace("kube-system", nil, nil)
	begin := time.Now()
	c.manyNodes(t)
	t.Logf("%d Nodes and cache Pods were created in %s", manyNodes, time.Since(begin).Round(time.Second))

	begin = time.Now()
	hook := c.webhook("hook-a", 8443, "-cert-overlap=1s", "-replace-grace=0s", "-log-level=info").await()
	t.Logf("in service after %s", time.Since(begin).Round(10*time.Millisecond))
	c.untilInjected("shop")
	if text := hook.metrics(); !strings.Contains(text, fmt.Sprintf("\nnodedns_webhook_usable_nodes %d\n", manyNodes)) {
		t.Errorf("not all nodes are usable")
	}
	memory := func(when string) {
		t.Helper()
		now, peak := resident(t, hook.process.Pid(), "VmRSS"), resident(t, hook.process.Pid(), "VmHWM")
		t.Logf("resident %s: %.1f MiB, at most %.1f MiB so far", when, float64(now)/(1<<20), float64(peak)/(1<<20))
		if peak > memoryGoal {
			t.Errorf("more than %d MiB", memoryGoal>>20)
		}
	}
	memory("after the start")

	// A second each of Pods that are reviewed and of Pods that are not, in turn, so that the machine's moods meet both;
	// and once more if they do not.
	for attempt := range 5 {
		var with, without []time.Duration
		for range 10 {
			with = append(with, c.second(t, "shop")...)
			without = append(without, c.second(t, "plain")...)
		}
		added := quantile(with, .99) - quantile(without, .99)
		t.Logf("at 100 creations a second: p50 %s reviewed, %s not; p99 %s reviewed, %s not; p99 added %s",
			quantile(with, .5), quantile(without, .5), quantile(with, .99), quantile(without, .99), added)
		if added <= addedGoal {
			break
		}
		if attempt == 4 {
			t.Errorf("reviewing adds %s to the p99 of a creation, at most %s are allowed", added, addedGoal)
		}
	}
	memory("after 1,000 reviews")

	// One cache down: Pods that may land anywhere and Pods that choose.
	node := realNode(7).Name
	c.cache(node, false)
	c.until("the webhook to see a cache go", func(context.Context) error {
		if !strings.Contains(hook.metrics(), fmt.Sprintf("\nnodedns_webhook_usable_nodes %d\n", manyNodes-1)) {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	for name, change := range map[string]func(*corev1.Pod){
		"anywhere": func(*corev1.Pod) {},
		"one pool": func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"node.example/pool": "pool-7"} },
		"all but one zone": func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"eu-central-1a"}}}}}}}}
		},
	} {
		if p := c.create("shop", pod(change)); !injected(p) {
			t.Errorf("with one cache of %d down, a Pod for %s is not injected", manyNodes, name)
		}
	}
	if p := c.create("shop", pod(func(p *corev1.Pod) { p.Spec.NodeName = node })); injected(p) {
		t.Error("a Pod for the node whose cache is down is injected")
	}
	for line := range strings.Lines(hook.metrics()) {
		if strings.HasPrefix(line, "nodedns_webhook_review_duration_seconds_") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// second creates 100 Pods in a second and returns how long each took.
func (c *cluster) second(t *testing.T, namespace string) []time.Duration {
	t.Helper()
	tr := c.traffic(namespace, 10*time.Millisecond)
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	<-timer.C
	tr.stop()
	if len(tr.failed) > 0 {
		t.Fatalf("creating a Pod in %s: %s", namespace, tr.failed[0])
	}
	return tr.latencies
}

func quantile(all []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Round(10 * time.Microsecond)
}
