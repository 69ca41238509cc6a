package admit

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// typedDefaulter does to a typed Pod what the patch does to the raw one: the way most injectors are written.
type typedDefaulter struct{}

func (typedDefaulter) Default(_ context.Context, pod *corev1.Pod) error {
	ndots := "5"
	pod.Spec.DNSPolicy = corev1.DNSNone
	pod.Spec.DNSConfig = &corev1.PodDNSConfig{
		Nameservers: []string{"169.254.25.10", "10.96.0.10"},
		Searches:    []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"},
		Options:     []corev1.PodDNSConfigOption{{Name: "ndots", Value: &ndots}},
	}
	pod.Labels[poddns.InjectedLabel] = "true"
	pod.Annotations[poddns.ReplacedPolicyAnnotation] = "ClusterFirst"
	return nil
}

// sink takes an answer as the server's writer would, without the cost of a recorder.
type sink struct {
	header http.Header
	body   bytes.Buffer
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return s.body.Write(p) }
func (s *sink) WriteHeader(int)             {}

// reviewer posts one body again and again.
type reviewer struct {
	handler http.Handler
	body    *bytes.Reader
	request *http.Request
	sink    sink
}

func newReviewer(t testing.TB, handler http.Handler, body []byte) *reviewer {
	t.Helper()
	r := &reviewer{handler: handler, body: bytes.NewReader(body), sink: sink{header: http.Header{}}}
	var err error
	if r.request, err = http.NewRequestWithContext(t.Context(), http.MethodPost, "/mutate", nil); err != nil {
		t.Fatal(err)
	}
	r.request.Header.Set("Content-Type", "application/json")
	r.request.ContentLength = int64(len(body))
	return r
}

func (r *reviewer) post(t testing.TB) []byte {
	if _, err := r.body.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	r.request.Body = io.NopCloser(r.body)
	r.sink.body.Reset()
	r.handler.ServeHTTP(&r.sink, r.request)
	return r.sink.body.Bytes()
}

func typedHandler(t testing.TB) http.Handler {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return admission.WithDefaulter(scheme, typedDefaulter{})
}

func BenchmarkReview(b *testing.B) {
	body := fixture(b)
	for name, handler := range map[string]http.Handler{
		"nodedns":         newHandler(b, ready(), poddns.Policy{}, nil),
		"typed-defaulter": typedHandler(b),
	} {
		b.Run(name, func(b *testing.B) {
			r := newReviewer(b, handler, body)
			if !bytes.Contains(r.post(b), []byte(`"patch"`)) {
				b.Fatalf("no patch: %s", r.sink.body.Bytes())
			}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				r.post(b)
			}
		})
	}
}

// The limits are part of the contract: a quarter of the typed way's time, a hundred allocations.
func TestReviewIsCheap(t *testing.T) {
	body := fixture(t)
	ours := newReviewer(t, newHandler(t, ready(), poddns.Policy{}, nil), body)
	if n := testing.AllocsPerRun(200, func() { ours.post(t) }); n > 100 {
		t.Errorf("%v allocations, at most 100 are allowed", n)
	}
	typed := newReviewer(t, typedHandler(t), body)
	// The best of several rounds, so that a busy machine does not decide.
	best := func(r *reviewer, times int) time.Duration {
		var rounds []time.Duration
		for range 8 {
			begin := time.Now()
			for range times {
				r.post(t)
			}
			rounds = append(rounds, time.Since(begin)/time.Duration(times))
		}
		return slices.Min(rounds)
	}
	if o, d := best(ours, 200), best(typed, 30); o > d/4 {
		t.Errorf("a review takes %s, the typed defaulter %s; at most a quarter is allowed", o, d)
	}
}
