package readiness

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelHostname: name,
	}}}
	n.Status.NodeInfo.BootID = "boot-1"
	for _, c := range change {
		c(n)
	}
	return n
}

func cachePod(node string, ready bool, change ...func(*corev1.Pod)) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "nodedns-cache-" + node, UID: types.UID("uid-" + node)}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/ready?" + BackstopProof}}}}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{ContainerID: "c1"}}
	for _, c := range change {
		c(p)
	}
	return p
}

// SetPod and DeletePod feed a Pod as the informer would.
func (t *Tracker) SetPod(p *corev1.Pod) {
	trimmed, err := trimPod(p)
	if err != nil {
		panic(err)
	}
	t.setCache(trimmed.(*cacheObject))
}

func (t *Tracker) DeletePod(p *corev1.Pod) { t.deleteCache(p.Spec.NodeName, p.UID) }

// fleet is a synced tracker of n nodes n0, n1, …, all ready but the first down.
func fleet(t testing.TB, n, down int, cfg Config, change ...func(i int, n *corev1.Node)) *Tracker {
	t.Helper()
	tracker, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		object := testNode(fmt.Sprintf("n%d", i))
		for _, c := range change {
			c(i, object)
		}
		tracker.SetNode(object)
		tracker.SetPod(cachePod(object.Name, i >= down))
	}
	tracker.Synced()
	return tracker
}

func placement(t testing.TB, spec string) poddns.Placement {
	t.Helper()
	if !json.Valid([]byte(spec)) {
		t.Fatalf("spec %s is no JSON", spec)
	}
	pod, err := poddns.Parse([]byte(`{"metadata":{},"spec":` + spec + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return pod.Placement
}

func wantState(t testing.TB, tracker *Tracker, spec string, want poddns.Caches) {
	t.Helper()
	if got := tracker.State(placement(t, spec)); got != want {
		t.Errorf("state of %s: %d, want %d", spec, got, want)
	}
}

func TestNothingIsReadyBeforeSync(t *testing.T) {
	tracker, err := New(Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tracker.SetNode(testNode("n0"))
	tracker.SetPod(cachePod("n0", true))
	for _, spec := range []string{`{}`, `{"nodeName":"n0"}`, `{"nodeSelector":{"a":"b"}}`} {
		wantState(t, tracker, spec, poddns.CachesNotReady)
	}
	tracker.Synced()
	wantState(t, tracker, `{}`, poddns.CachesAllReady)
}

func TestEmptyClusterIsNotReady(t *testing.T) {
	wantState(t, fleet(t, 0, 0, Config{}), `{}`, poddns.CachesNotReady)
}

func TestHysteresisOfTheWholeCluster(t *testing.T) {
	tracker := fleet(t, 100, 0, Config{Grace: -1})
	for _, step := range []struct {
		down int
		want poddns.Caches
	}{
		{0, poddns.CachesAllReady}, {1, poddns.CachesReady}, {20, poddns.CachesReady}, {21, poddns.CachesNotReady},
		{20, poddns.CachesNotReady}, {6, poddns.CachesNotReady}, {5, poddns.CachesReady}, {20, poddns.CachesReady},
		{100, poddns.CachesNotReady}, {0, poddns.CachesAllReady},
	} {
		for i := range 100 {
			tracker.SetPod(cachePod(fmt.Sprintf("n%d", i), i >= step.down))
		}
		// The walk to a step passes through the states between, as a real one would.
		if got := tracker.State(poddns.Placement{}); got != step.want {
			t.Errorf("with %d of 100 down: %d, want %d", step.down, got, step.want)
		}
	}
}

func TestKnownNodeCountsAlone(t *testing.T) {
	tracker := fleet(t, 10, 9, Config{})
	wantState(t, tracker, `{"nodeName":"n9"}`, poddns.CachesAllReady)
	wantState(t, tracker, `{"nodeName":"n0"}`, poddns.CachesNotReady)
	wantState(t, tracker, `{"nodeName":"unheard-of"}`, poddns.CachesNotReady)
	daemon := `{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
		{"matchFields":[{"key":"metadata.name","operator":"In","values":["%s"]}]}]}}}}`
	wantState(t, tracker, fmt.Sprintf(daemon, "n9"), poddns.CachesAllReady)
	wantState(t, tracker, fmt.Sprintf(daemon, "n0"), poddns.CachesNotReady)
}

func TestOnlyNodesWhereThePodMayLandCount(t *testing.T) {
	tracker := fleet(t, 40, 10, Config{}, func(i int, n *corev1.Node) {
		if i < 10 {
			n.Labels["pool"] = "broken"
		} else {
			n.Labels["pool"] = "good"
		}
		switch {
		case i >= 10 && i < 20:
			n.Labels[corev1.LabelArchStable] = "arm64"
		case i == 20:
			n.Spec.Taints = []corev1.Taint{{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}}
		case i == 21:
			n.Spec.Unschedulable = true
		}
	})
	for spec, want := range map[string]poddns.Caches{
		`{}`:                                 poddns.CachesNotReady, // 10 of 38 down
		`{"nodeSelector":{"pool":"good"}}`:   poddns.CachesAllReady,
		`{"nodeSelector":{"pool":"broken"}}`: poddns.CachesNotReady,
		`{"nodeSelector":{"kubernetes.io/arch":"arm64"}}`: poddns.CachesAllReady,
		`{"nodeSelector":{"pool":"none"}}`:                poddns.CachesNotReady, // as the whole cluster
		`{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
			{"matchExpressions":[{"key":"pool","operator":"NotIn","values":["broken"]}]}]}}}}`: poddns.CachesAllReady,
		`{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
			{"matchExpressions":[{"key":"pool","operator":"Exists"}]}]}}}}`: poddns.CachesNotReady,
		`{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[
			{"weight":1,"preference":{"matchExpressions":[{"key":"pool","operator":"In","values":["good"]}]}}]}}}`: poddns.CachesNotReady,
		`{"tolerations":[{"operator":"Exists"}],"nodeSelector":{"kubernetes.io/hostname":"n20"}}`:           poddns.CachesAllReady,
		`{"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute"}]}`: poddns.CachesNotReady,
	} {
		wantState(t, tracker, spec, want)
		wantState(t, tracker, spec, want) // from memory
	}
}

func TestEachPlacementHasItsOwnHysteresis(t *testing.T) {
	tracker := fleet(t, 110, 0, Config{Grace: -1}, func(i int, n *corev1.Node) {
		if i < 10 {
			n.Labels["pool"] = "small"
		}
	})
	const small = `{"nodeSelector":{"pool":"small"}}`
	set := func(down int) {
		for i := range 10 {
			tracker.SetPod(cachePod(fmt.Sprintf("n%d", i), i >= down))
		}
	}
	wantState(t, tracker, small, poddns.CachesAllReady)
	for _, step := range []struct {
		down int
		want poddns.Caches
	}{{2, poddns.CachesReady}, {3, poddns.CachesNotReady}, {1, poddns.CachesNotReady}, {0, poddns.CachesAllReady}, {1, poddns.CachesReady}} {
		set(step.down)
		wantState(t, tracker, small, step.want)
		if got := tracker.State(poddns.Placement{}); got == poddns.CachesNotReady {
			t.Errorf("%d of 110 down: the whole cluster is off", step.down)
		}
	}
}

func TestWindowsAndVirtualNodesDoNotCount(t *testing.T) {
	tracker := fleet(t, 4, 2, Config{}, func(i int, n *corev1.Node) {
		switch i {
		case 0:
			n.Labels[corev1.LabelOSStable] = "windows"
		case 1:
			n.Labels["type"] = "virtual-kubelet"
		}
	})
	wantState(t, tracker, `{}`, poddns.CachesAllReady)
	wantState(t, tracker, `{"nodeName":"n1"}`, poddns.CachesNotReady)
}

// A cache that is being replaced leaves its node usable, for a while and in the same boot only.
func TestGraceOfAReplacedCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := fleet(t, 1, 0, Config{Grace: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tracker.Run(ctx) }()

		tracker.DeletePod(cachePod("n0", true))
		wantState(t, tracker, `{"nodeName":"n0"}`, poddns.CachesAllReady)
		if tracker.ReadySinceBoot("n0") {
			t.Error("a node without a cache counts as ready")
		}
		time.Sleep(30 * time.Second)
		tracker.SetPod(cachePod("n0", false, func(p *corev1.Pod) { p.UID = "second" }))
		wantState(t, tracker, `{"nodeName":"n0"}`, poddns.CachesAllReady)
		time.Sleep(32 * time.Second)
		wantState(t, tracker, `{"nodeName":"n0"}`, poddns.CachesNotReady)
		wantState(t, tracker, `{}`, poddns.CachesNotReady)
		tracker.SetPod(cachePod("n0", true, func(p *corev1.Pod) { p.UID = "second" }))
		wantState(t, tracker, `{}`, poddns.CachesAllReady)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// After a reboot a Pod's status still says what was true before, until kubelet comes to it.
func TestRebootedNodeIsNotReadyByItsOldStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := fleet(t, 1, 0, Config{})
		rebooted := testNode("n0", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" })
		tracker.SetNode(rebooted)
		wantState(t, tracker, `{}`, poddns.CachesNotReady)
		tracker.SetPod(cachePod("n0", true)) // an unrelated update
		wantState(t, tracker, `{}`, poddns.CachesNotReady)
		again := func(p *corev1.Pod) { p.Status.ContainerStatuses[0].ContainerID = "c2" }
		tracker.SetPod(cachePod("n0", false, again))
		wantState(t, tracker, `{}`, poddns.CachesNotReady)
		tracker.SetPod(cachePod("n0", true, again))
		wantState(t, tracker, `{}`, poddns.CachesAllReady)
		if !tracker.ReadySinceBoot("n0") {
			t.Error("not ready since boot")
		}
	})
}

// So it is where the Node was deleted meanwhile and has registered again.
func TestReregisteredNodeIsNotReadyByItsOldStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := fleet(t, 1, 0, Config{})
		tracker.DeleteNode("n0")
		tracker.SetNode(testNode("n0"))
		wantState(t, tracker, `{}`, poddns.CachesAllReady) // in the same boot it only lost its Node for a moment
		tracker.DeleteNode("n0")
		tracker.SetNode(testNode("n0", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" }))
		wantState(t, tracker, `{}`, poddns.CachesNotReady)
		if tracker.ReadySinceBoot("n0") {
			t.Error("its old status counts as ready since the boot")
		}
		tracker.SetPod(cachePod("n0", true, func(p *corev1.Pod) { p.UID = "second" }))
		wantState(t, tracker, `{}`, poddns.CachesAllReady)
	})
}

// The two reports may come in the other order; then the doubt ends by itself.
func TestDoubtAfterRebootEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := fleet(t, 1, 0, Config{})
		tracker.SetNode(testNode("n0", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" }))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tracker.Run(ctx) }()
		time.Sleep(staleFor + 2*time.Second)
		wantState(t, tracker, `{}`, poddns.CachesAllReady)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestBreakerIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []Summary
		tracker, err := New(Config{Grace: -1}, func(s Summary) { seen = append(seen, s) })
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tracker.Run(ctx) }()
		tracker.SetNode(testNode("n0"))
		tracker.Synced()
		synctest.Wait()
		tracker.SetPod(cachePod("n0", true))
		synctest.Wait()
		tracker.SetPod(cachePod("n0", false))
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []Summary{{Nodes: 1}, {Nodes: 1, Usable: 1, On: true}, {Nodes: 1}}
		if fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("reported %v, want %v", seen, want)
		}
	})
}

// The counts kept along the way are those a recount would give.
func TestCountsSurviveAnyOrder(t *testing.T) {
	tracker := fleet(t, 0, 0, Config{Grace: -1})
	step := func(i int) {
		name := fmt.Sprintf("n%d", i*7%13)
		switch i % 5 {
		case 0:
			tracker.SetNode(testNode(name))
		case 1:
			tracker.SetPod(cachePod(name, i%3 != 0, func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:i%2] }))
		case 2:
			tracker.SetNode(testNode(name, func(n *corev1.Node) { n.Spec.Unschedulable = i%2 == 0 }))
		case 3:
			if i%4 == 0 {
				tracker.DeleteNode(name)
			}
		case 4:
			if i%6 == 0 {
				tracker.DeletePod(cachePod(name, true))
			}
		}
	}
	for i := range 3000 {
		step(i)
		open, openDown, down, unproven := 0, 0, 0, 0
		for _, n := range tracker.nodes {
			if n.object == nil {
				continue
			}
			if !n.usable {
				down++
			} else if !n.proven {
				unproven++
			}
			if plainlyOpen(n.object) {
				open++
				if !n.usable {
					openDown++
				}
			}
		}
		if open != tracker.open || openDown != tracker.openDown || down != len(tracker.down) || unproven != tracker.unproven {
			t.Fatalf("step %d: open %d/%d, openDown %d/%d, down %d/%d, unproven %d/%d (recount/kept)",
				i, open, tracker.open, openDown, tracker.openDown, down, len(tracker.down), unproven, tracker.unproven)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for _, bad := range []Config{{On: 1.1}, {On: -1}, {On: 0.5, Off: 0.6}, {Off: -0.1}, {On: math.NaN()}, {Off: math.NaN()}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if err := (Config{}).Validate(); err != nil {
		t.Error(err)
	}
}

func BenchmarkState(b *testing.B) {
	const selective = `{"nodeSelector":{"kubernetes.io/hostname":"n4999"},"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":
		{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/os","operator":"In","values":["linux"]}]}]}}}}`
	for _, bench := range []struct {
		name  string
		nodes int
		down  int
		spec  string
	}{
		{"all-ready/50", 50, 0, `{}`}, {"all-ready/5000", 5000, 0, `{}`}, {"all-ready-affinity/5000", 5000, 0, selective},
		{"one-down/5000", 5000, 1, `{}`}, {"one-down-selector/5000", 5000, 1, `{"nodeSelector":{"kubernetes.io/os":"linux"}}`},
		{"one-down-affinity/5000", 5000, 1, selective},
	} {
		tracker := fleet(b, bench.nodes, bench.down, Config{})
		p := placement(b, bench.spec)
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				tracker.State(p)
			}
		})
		b.Run(bench.name+"/unseen", func(b *testing.B) {
			for b.Loop() {
				tracker.mu.Lock()
				tracker.version++ // whatever is remembered is out of date
				tracker.mu.Unlock()
				tracker.State(p)
			}
		})
	}
}
