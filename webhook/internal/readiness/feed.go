package readiness

import (
	"fmt"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Informer is the part of a client-go informer that feeding needs.
type Informer interface {
	SetTransform(cache.TransformFunc) error
	AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
}

// Feed lets nodes and the cache's pods flow into t. Both informers must not have started yet; the registrations tell
// when everything that was there has arrived, upon which the caller says t.Synced.
func Feed(t *Tracker, nodes, pods Informer) ([]cache.ResourceEventHandlerRegistration, error) {
	if err := nodes.SetTransform(TrimNode); err != nil {
		return nil, fmt.Errorf("setting the transform of Nodes: %w", err)
	}
	if err := pods.SetTransform(trimPod); err != nil {
		return nil, fmt.Errorf("setting the transform of cache Pods: %w", err)
	}
	nodesSynced, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { t.SetNode(object.(*corev1.Node)) },
		UpdateFunc: func(_, object any) { t.SetNode(object.(*corev1.Node)) },
		DeleteFunc: func(object any) {
			if node, ok := deleted[*corev1.Node](object); ok {
				t.DeleteNode(node.Name)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching Nodes: %w", err)
	}
	podsSynced, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { t.setCache(object.(*cacheObject)) },
		UpdateFunc: func(_, object any) { t.setCache(object.(*cacheObject)) },
		DeleteFunc: func(object any) {
			if pod, ok := deleted[*cacheObject](object); ok {
				t.deleteCache(pod.node, pod.UID)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching cache Pods: %w", err)
	}
	return []cache.ResourceEventHandlerRegistration{nodesSynced, podsSynced}, nil
}

func deleted[T any](object any) (T, bool) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	typed, ok := object.(T)
	return typed, ok
}

// TrimNode keeps of a Node what placing a Pod needs. With thousands of nodes the images a Node lists are most of it;
// the words of labels repeat on all of them and are kept once.
func TrimNode(object any) (any, error) {
	in, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	out := &corev1.Node{
		ObjectMeta: trimMeta(&in.ObjectMeta),
		Spec:       corev1.NodeSpec{Unschedulable: in.Spec.Unschedulable},
	}
	if len(in.Labels) > 0 {
		out.Labels = make(map[string]string, len(in.Labels))
		for key, value := range in.Labels {
			out.Labels[intern(key)] = intern(value)
		}
	}
	for _, taint := range in.Spec.Taints {
		out.Spec.Taints = append(out.Spec.Taints, corev1.Taint{
			Key: intern(taint.Key), Value: intern(taint.Value), Effect: corev1.TaintEffect(intern(string(taint.Effect)))})
	}
	out.Status.NodeInfo.BootID = strings.Clone(in.Status.NodeInfo.BootID)
	out.Status.NodeInfo.OperatingSystem = intern(in.Status.NodeInfo.OperatingSystem)
	return out, nil
}

// cacheObject is what is kept of a cache Pod. It stands in the informer's store in the Pod's place: an empty Pod takes
// four times as much.
type cacheObject struct {
	metav1.ObjectMeta
	node string
	podState
}

func trimPod(object any) (any, error) {
	in, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	out := &cacheObject{ObjectMeta: trimMeta(&in.ObjectMeta), node: strings.Clone(in.Spec.NodeName),
		podState: podState{ready: podReady(in), proves: provesBackstop(in), life: podLife(in)}}
	out.Namespace = intern(in.Namespace)
	return out, nil
}

func trimMeta(in *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: strings.Clone(in.Name), UID: in.UID, ResourceVersion: strings.Clone(in.ResourceVersion)}
}

func intern(s string) string { return unique.Make(s).Value() }
