package readiness

import (
	"hash/fnv"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SetNode takes in a Node as it is now. The Tracker keeps the object; nobody may change it any more.
func (t *Tracker) SetNode(object *corev1.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodeLocked(object.Name)
	if boot := object.Status.NodeInfo.BootID; boot != n.boot {
		if n.boot != "" { // also where it was deleted and has registered anew
			n.forgetBoot()
		}
		n.boot = boot
	}
	relevant := n.object == nil || !samePlace(n.object, object)
	n.object = object
	if relevant {
		t.placeLocked(n)
		t.version++
	}
	t.judgeLocked(n)
	t.settleLocked()
}

// DeleteNode forgets a Node.
func (t *Tracker) DeleteNode(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[name]
	if n == nil || n.object == nil {
		return
	}
	n.object = nil
	t.placeLocked(n)
	t.version++
	if len(n.pods) == 0 {
		delete(t.nodes, name)
	}
	t.settleLocked()
}

// setCache takes in a cache Pod as it is now.
func (t *Tracker) setCache(pod *cacheObject) {
	if pod.node == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodeLocked(pod.node)
	state := pod.podState
	if old, ok := n.pods[pod.UID]; ok && old.life == state.life {
		state.staleUntil = old.staleUntil
	}
	n.pods[pod.UID] = state
	t.judgeLocked(n)
	t.settleLocked()
}

// deleteCache forgets a cache Pod.
func (t *Tracker) deleteCache(name string, uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[name]
	if n == nil {
		return
	}
	delete(n.pods, uid)
	t.judgeLocked(n)
	if n.object == nil && len(n.pods) == 0 {
		delete(t.nodes, n.name)
	}
	t.settleLocked()
}

// ReadySinceBoot tells whether a cache on that node is ready at this moment, and has become so since the node booted.
func (t *Tracker) ReadySinceBoot(name string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n := t.nodes[name]
	return t.synced && n != nil && n.object != nil && n.ready()
}

func (t *Tracker) nodeLocked(name string) *node {
	n := t.nodes[name]
	if n == nil {
		n = &node{name: name, index: -1, pods: map[types.UID]podState{}}
		t.nodes[name] = n
	}
	return n
}

// placeLocked takes n into the counts or out of them.
func (t *Tracker) placeLocked(n *node) {
	t.uncountLocked(n)
	if n.object == nil || !hostsCache(n.object) {
		return
	}
	n.index = len(t.order)
	t.order = append(t.order, n)
	n.open = plainlyOpen(n.object)
	if n.open {
		t.open++
	}
	if !n.usable {
		t.countDownLocked(n)
	}
	t.proofLocked(n)
}

func (t *Tracker) uncountLocked(n *node) {
	if n.index < 0 {
		return
	}
	last := t.order[len(t.order)-1]
	t.order[n.index] = last
	last.index = n.index
	t.order[len(t.order)-1] = nil
	t.order = t.order[:len(t.order)-1]
	n.index = -1
	if _, is := t.down[n]; is {
		delete(t.down, n)
		if n.open {
			t.openDown--
		}
	}
	if n.open {
		t.open--
	}
	n.open = false
	t.proofLocked(n)
}

// proofLocked keeps the count of nodes that are usable by a cache which does not prove its backstop.
func (t *Tracker) proofLocked(n *node) {
	unproven := n.index >= 0 && n.usable && !n.proven
	if unproven == n.unproven {
		return
	}
	n.unproven = unproven
	t.version++
	if unproven {
		t.unproven++
	} else {
		t.unproven--
	}
}

func (t *Tracker) countDownLocked(n *node) {
	t.down[n] = struct{}{}
	if n.open {
		t.openDown++
	}
}

// judgeLocked decides anew whether n is usable.
func (t *Tracker) judgeLocked(n *node) {
	defer t.proofLocked(n)
	ready := n.ready()
	switch {
	case ready && n.object != nil:
		n.proven = n.proves() // and so it stays while the cache is replaced: the backstop does
		n.readyBoot, n.lost = n.object.Status.NodeInfo.BootID, time.Time{}
	case !ready && n.usable && n.lost.IsZero():
		n.lost = time.Now()
	}
	usable := ready
	if !ready && !n.lost.IsZero() && n.object != nil && n.readyBoot == n.object.Status.NodeInfo.BootID {
		usable = time.Since(n.lost) < t.cfg.Grace
	}
	if usable == n.usable {
		return
	}
	n.usable = usable
	if n.index < 0 {
		return
	}
	t.version++
	if !usable {
		t.countDownLocked(n)
		return
	}
	delete(t.down, n)
	if n.open {
		t.openDown--
	}
}

// ready tells whether any cache Pod of the node is ready in this boot.
func (n *node) ready() bool {
	for _, p := range n.pods {
		if p.readyNow() {
			return true
		}
	}
	return false
}

// proves tells whether one that is ready proves its backstop by that.
func (n *node) proves() bool {
	for _, p := range n.pods {
		if p.readyNow() && p.proves {
			return true
		}
	}
	return false
}

func (p podState) readyNow() bool {
	return p.ready && (p.staleUntil.IsZero() || time.Now().After(p.staleUntil))
}

// forgetBoot is called when the node has booted anew: its address and rules are gone, and whatever its Pods' status
// says was true of the boot before.
func (n *node) forgetBoot() {
	n.readyBoot, n.lost = "", time.Time{}
	for uid, p := range n.pods {
		p.staleUntil = time.Now().Add(staleFor)
		n.pods[uid] = p
	}
}

// hostsCache tells whether a node cache can run on the node at all.
func hostsCache(object *corev1.Node) bool {
	if object.Labels[corev1.LabelOSStable] == "windows" || object.Status.NodeInfo.OperatingSystem == "windows" {
		return false
	}
	return object.Labels["type"] != "virtual-kubelet"
}

// plainlyOpen tells whether a Pod that tolerates nothing may be put there.
func plainlyOpen(object *corev1.Node) bool {
	if object.Spec.Unschedulable {
		return false
	}
	for i := range object.Spec.Taints {
		if keepsOut(&object.Spec.Taints[i]) {
			return false
		}
	}
	return true
}

func keepsOut(taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
}

// podReady tells whether the Pod's Ready condition holds. A Pod on its way out has left service already.
func podReady(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// BackstopProof is what the readiness probe of a cache asks in its path's query for Ready to mean that guard and backstop
// are armed and outlast the cache: the cache has no rights in the API to say so in another way, and its readiness alone
// says only that it answers.
const BackstopProof = "need=backstop"

// provesBackstop tells whether the Pod's readiness includes that proof.
func provesBackstop(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		probe := pod.Spec.Containers[i].ReadinessProbe
		if probe == nil || probe.HTTPGet == nil {
			continue
		}
		if _, query, _ := strings.Cut(probe.HTTPGet.Path, "?"); slices.Contains(strings.Split(query, "&"), BackstopProof) {
			return true
		}
	}
	return false
}

// podLife changes with the container and with each turn of the Ready condition.
func podLife(pod *corev1.Pod) uint64 {
	h := fnv.New64a()
	for i := range pod.Status.ContainerStatuses {
		_, _ = io.WriteString(h, pod.Status.ContainerStatuses[i].ContainerID+" ") // a hash takes everything
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			_, _ = io.WriteString(h, c.LastTransitionTime.UTC().Format(time.RFC3339))
		}
	}
	return h.Sum64()
}
