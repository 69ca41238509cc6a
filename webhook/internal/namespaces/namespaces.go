// Package namespaces knows the labels and annotations of namespaces that decide about injection. It reads them through
// an informer, and directly for a namespace so new that the informer has not seen it; it owns nothing else.
package namespaces

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// A namespace so new is rare, and whoever reaches our port can ask for namespaces that are not there: such questions are
// few, lest they take the API server's time and that of our other requests.
const (
	lookupsPerSecond = 10
	lookupsAtOnce    = 20
)

// patience is how long a Pod may wait for its namespace to be read; the API server itself gives a review two seconds.
const patience = 500 * time.Millisecond

// Informer is the part of a client-go informer that is needed.
type Informer interface {
	SetTransform(cache.TransformFunc) error
	GetIndexer() cache.Indexer
}

// Getter reads one namespace from the API.
type Getter interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Namespace, error)
}

// Namespaces is safe for concurrent use.
type Namespaces struct {
	indexer cache.Indexer
	getter  Getter
	lookups flowcontrol.RateLimiter
}

// New reads from an informer that has not started yet, and from getter what that does not have.
func New(informer Informer, getter Getter) (*Namespaces, error) {
	if err := informer.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("setting the transform of Namespaces: %w", err)
	}
	return &Namespaces{indexer: informer.GetIndexer(), getter: getter, lookups: flowcontrol.NewTokenBucketRateLimiter(lookupsPerSecond, lookupsAtOnce)}, nil
}

// Namespace gives what is known of a namespace; ok is false if that could not be learnt.
func (n *Namespaces) Namespace(ctx context.Context, name string) (ns poddns.Namespace, ok bool) {
	if name == "" {
		return poddns.Namespace{}, false
	}
	if object, exists, err := n.indexer.GetByKey(name); err == nil && exists {
		known := object.(*corev1.Namespace)
		return poddns.NewNamespace(name, known.Labels, known.Annotations), true
	}
	if len(validation.IsDNS1123Label(name)) > 0 || !n.lookups.TryAccept() {
		return poddns.Namespace{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	known, err := n.getter.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return poddns.Namespace{}, false
	}
	return poddns.NewNamespace(name, known.Labels, known.Annotations), true
}

// trim keeps our own label and annotations.
func trim(object any) (any, error) {
	in, ok := object.(*corev1.Namespace)
	if !ok {
		return object, nil
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:            in.Name,
		ResourceVersion: in.ResourceVersion,
		Labels:          own(in.Labels),
		Annotations:     own(in.Annotations),
	}}, nil
}

func own(all map[string]string) map[string]string {
	kept := maps.Clone(all)
	maps.DeleteFunc(kept, func(key, _ string) bool { return !strings.HasPrefix(key, poddns.InjectionLabel) })
	if len(kept) == 0 {
		return nil
	}
	return kept
}
