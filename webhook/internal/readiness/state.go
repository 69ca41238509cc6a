package readiness

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
	"github.com/nodedns/nodedns/webhook/internal/rawjson"
)

// verdict is what was last found for one kind of placement.
type verdict struct {
	version uint64
	state   poddns.Caches
}

// State tells how the caches stand on the nodes where a Pod of that placement may land:
//   - the node is known: that node's cache alone counts;
//   - every node's cache is usable: yes, without looking at the placement;
//   - what is said to be all ready must prove its backstop, on every node of the cluster: its caches are of one make;
//   - no node fits, so that one will be made: as the whole cluster stands;
//   - otherwise the usable fraction of the nodes that fit, with hysteresis for each kind of placement.
func (t *Tracker) State(p poddns.Placement) poddns.Caches {
	required := requiredAffinity(p.Affinity)
	if name := nodeNamed(p.NodeName, required); name != "" {
		return t.oneNode(name)
	}
	if t.allUsable.Load() {
		if t.allProven.Load() {
			return poddns.CachesAllReady
		}
		return poddns.CachesReady
	}
	if p.NodeSelector.Empty() && required.Empty() && ordinary(p.Tolerations) {
		return t.wholeCluster()
	}
	if len(p.NodeSelector)+len(required)+len(p.Tolerations) > placementLimit {
		return t.wholeCluster()
	}
	return t.someNodes(p, required)
}

// placementLimit is the size in bytes from which on a placement is not matched with every node, which for one of
// megabytes would take minutes of every review's time. Real ones have hundreds.
const placementLimit = 8 << 10

func (t *Tracker) oneNode(name string) poddns.Caches {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n := t.nodes[name]
	switch {
	case !t.synced || n == nil || n.index < 0 || !n.usable:
		return poddns.CachesNotReady
	case !n.proven:
		return poddns.CachesReady
	}
	return poddns.CachesAllReady
}

func (t *Tracker) wholeCluster() poddns.Caches {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.wholeClusterLocked()
}

func (t *Tracker) wholeClusterLocked() poddns.Caches {
	switch {
	case !t.on:
		return poddns.CachesNotReady
	case t.openDown == 0 && t.unproven == 0:
		return poddns.CachesAllReady
	default:
		return poddns.CachesReady
	}
}

func (t *Tracker) someNodes(p poddns.Placement, required rawjson.Value) poddns.Caches {
	key := placementKey(p, required)
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.synced {
		return poddns.CachesNotReady
	}
	was := t.on
	if value, ok := t.verdicts.Get(key); ok {
		last := value.(verdict)
		if last.version == t.version {
			return last.state
		}
		was = last.state != poddns.CachesNotReady || last.version < t.allAt
	}
	state := t.judgeSetLocked(p, required, was)
	t.verdicts.Add(key, verdict{version: t.version, state: state})
	return state
}

// placementKey stands for a placement in the memory: what users write must not fill that.
func placementKey(p poddns.Placement, required rawjson.Value) [sha256.Size]byte {
	h := sha256.New()
	for _, part := range []rawjson.Value{p.NodeSelector, required, p.Tolerations} {
		h.Write(part)
		h.Write([]byte{'\n'})
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// judgeSetLocked looks at the nodes that are down first, for they are few, and counts the others only as far as it
// must: as soon as enough others are found to outweigh them, the rest does not matter.
func (t *Tracker) judgeSetLocked(p poddns.Placement, required rawjson.Value, was bool) poddns.Caches {
	fits, err := matcher(p, required)
	if err != nil {
		// What cannot be read the API server will refuse; say nothing about it here.
		return t.wholeClusterLocked()
	}
	down := 0
	for n := range t.down {
		if fits(n.object) {
			down++
		}
	}
	usable := 0
	for _, n := range t.order {
		if !n.usable || !fits(n.object) {
			continue
		}
		usable++
		if t.cfg.decide(down, usable+down, was) {
			break
		}
	}
	switch {
	case usable+down == 0:
		return t.wholeClusterLocked()
	case !t.cfg.decide(down, usable+down, was):
		return poddns.CachesNotReady
	case down == 0 && t.unproven == 0:
		return poddns.CachesAllReady
	default:
		return poddns.CachesReady
	}
}

// matcher makes the test whether a Pod of that placement may be put on a node, by the scheduler's own helpers.
func matcher(p poddns.Placement, required rawjson.Value) (func(*corev1.Node) bool, error) {
	var selector map[string]string
	var tolerations []corev1.Toleration
	affinity := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	for _, part := range []struct {
		raw  rawjson.Value
		into any
	}{
		{p.NodeSelector, &selector},
		{p.Tolerations, &tolerations},
		{required, &affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution},
	} {
		if part.raw.Null() {
			continue
		}
		if err := json.Unmarshal(part.raw, part.into); err != nil {
			return nil, err
		}
	}
	wanted := nodeaffinity.NewRequiredNodeAffinity(selector, affinity)
	logger := klog.Background()
	unschedulable := []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
	tolerated := func(taints []corev1.Taint) bool {
		if len(taints) == 0 {
			return true
		}
		_, untolerated := schedulingv1.FindMatchingUntoleratedTaint(logger, taints, tolerations, keepsOut, true)
		return !untolerated
	}
	return func(object *corev1.Node) bool {
		if !tolerated(object.Spec.Taints) || object.Spec.Unschedulable && !tolerated(unschedulable) {
			return false
		}
		match, err := wanted.Match(object)
		return match && err == nil
	}, nil
}

func requiredAffinity(affinity rawjson.Value) rawjson.Value {
	if affinity.Empty() {
		return nil
	}
	return rawjson.Get(rawjson.Get(affinity, "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
}

// nodeNamed is the node a Pod is bound to: by spec.nodeName, or by the affinity that the DaemonSet controller writes.
func nodeNamed(nodeName string, required rawjson.Value) string {
	if nodeName != "" || required.Empty() {
		return nodeName
	}
	name := ""
	for term := range rawjson.Elements(rawjson.Get(required, "nodeSelectorTerms")) {
		var inTerm string
		for field := range rawjson.Elements(rawjson.Get(term, "matchFields")) {
			if !rawjson.Get(field, "key").Is("metadata.name") || !rawjson.Get(field, "operator").Is("In") {
				continue
			}
			for value := range rawjson.Elements(rawjson.Get(field, "values")) {
				inTerm, _ = value.String()
			}
		}
		// Terms are alternatives: each must name the same node.
		if inTerm == "" || name != "" && name != inTerm {
			return ""
		}
		name = inTerm
	}
	return name
}

// ordinary tells whether the tolerations are at most those which the API server gives to every Pod.
func ordinary(tolerations rawjson.Value) bool {
	for toleration := range rawjson.Elements(tolerations) {
		key := rawjson.Get(toleration, "key")
		if !rawjson.Get(toleration, "effect").Is("NoExecute") ||
			!key.Is(corev1.TaintNodeNotReady) && !key.Is(corev1.TaintNodeUnreachable) {
			return false
		}
	}
	return true
}

// samePlace tells whether two states of a Node take the same Pods.
func samePlace(a, b *corev1.Node) bool {
	return a.Spec.Unschedulable == b.Spec.Unschedulable &&
		a.Status.NodeInfo.OperatingSystem == b.Status.NodeInfo.OperatingSystem &&
		maps.Equal(a.Labels, b.Labels) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(x, y corev1.Taint) bool { return x.MatchTaint(&y) && x.Value == y.Value })
}
