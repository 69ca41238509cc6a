package namespaces

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// shelf is an informer that has what was put into it.
type shelf struct {
	cache.Indexer
	transform cache.TransformFunc
}

func (s *shelf) SetTransform(f cache.TransformFunc) error { s.transform = f; return nil }
func (s *shelf) GetIndexer() cache.Indexer                { return s.Indexer }

type getter map[string]*corev1.Namespace

func (g getter) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	if ns, ok := g[name]; ok {
		return ns, nil
	}
	if name == "slow" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, errors.New("not found")
}

func named(name, injection string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels:        map[string]string{poddns.InjectionLabel: injection, "team": "shop"},
		Annotations:   map[string]string{poddns.NdotsAnnotation: "2", "note": "long"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}}}}
}

func TestNamespace(t *testing.T) {
	s := &shelf{Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)}
	n, err := New(s, getter{"new": named("new", "enabled"), "known": named("known", "changed in the API")})
	if err != nil {
		t.Fatal(err)
	}
	trimmed, err := s.transform(named("known", "enabled"))
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "known",
		Labels:      map[string]string{poddns.InjectionLabel: "enabled"},
		Annotations: map[string]string{poddns.NdotsAnnotation: "2"}}}
	if diff := cmp.Diff(want, trimmed); diff != "" {
		t.Errorf("trimmed, -want +got:\n%s", diff)
	}
	if err := s.Add(trimmed); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]poddns.Namespace{
		"known":   {Name: "known", Injection: "enabled", Ndots: "2"}, // the informer's word, without asking
		"new":     {Name: "new", Injection: "enabled", Ndots: "2"},
		"missing": {}, "slow": {}, "": {},
	} {
		got, ok := n.Namespace(t.Context(), name)
		if ok != (want.Name != "") || got != want {
			t.Errorf("%q: %+v %t, want %+v", name, got, ok, want)
		}
	}
}

// counting counts what is asked of the API server.
type counting struct{ asked int }

func (c *counting) Get(context.Context, string, metav1.GetOptions) (*corev1.Namespace, error) {
	c.asked++
	return nil, errors.New("there is no such namespace")
}

// Whoever can post reviews cannot make the API server be asked without end, nor for what is no namespace's name.
func TestLookupsAreFew(t *testing.T) {
	c := &counting{}
	n, err := New(&shelf{Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)}, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../secrets", "a/b", "A", strings.Repeat("a", 64), "a.b", "\x00"} {
		if _, ok := n.Namespace(t.Context(), name); ok || c.asked > 0 {
			t.Errorf("%q was looked up", name)
		}
	}
	for i := range 5000 {
		if _, ok := n.Namespace(t.Context(), fmt.Sprintf("n%d", i)); ok {
			t.Fatal("found what is not there")
		}
	}
	if c.asked < lookupsAtOnce || c.asked > 2*lookupsAtOnce {
		t.Errorf("the API server was asked %d times", c.asked)
	}
}
