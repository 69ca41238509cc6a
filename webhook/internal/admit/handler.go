package admit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// Config of a Handler.
type Config struct {
	// Policy is what the operator chose.
	Policy poddns.Policy
	// MaxBody is the largest body read, in bytes. Zero: 3.5 MiB; the API server itself takes objects of up to 3 MiB, and a
	// review wraps one.
	MaxBody int64
}

// Sources are what a decision is made with. All must be safe for concurrent use and must not block for long.
type Sources struct {
	// Namespace gives a Pod's namespace; ok is false if nothing could be learnt about it before ctx ended.
	Namespace func(ctx context.Context, name string) (ns poddns.Namespace, ok bool)
	// Cluster gives what ClusterFirst is made of, zero if unknown.
	Cluster func() poddns.Cluster
	// Caches tells how the caches stand where a Pod may land.
	Caches func(poddns.Placement) poddns.Caches
	// EgressBlocked tells whether an egress policy keeps a Pod of that namespace with these labels (a JSON object or
	// empty) from the local address. Nil: none does.
	EgressBlocked func(namespace string, labels []byte) bool
	// Audited is told of each Pod that audit mode would have injected, dry runs left out. Nil: nobody asks.
	Audited func(namespace string)
}

// Handler is the http.Handler that reviews Pods.
type Handler struct {
	cfg     Config
	sources Sources
	log     *slog.Logger
	metrics *Metrics
	budget  budget
	buffers sync.Pool // of *[]byte
}

// New makes a Handler. metrics may be nil.
func New(cfg Config, sources Sources, log *slog.Logger, metrics *Metrics) (*Handler, error) {
	errs := []error{cfg.Policy.Validate()}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 7 << 19
	}
	if cfg.MaxBody < 0 || cfg.MaxBody > largeBudget {
		errs = append(errs, fmt.Errorf("largest body %d: want a number of bytes", cfg.MaxBody))
	}
	if sources.Namespace == nil || sources.Cluster == nil || sources.Caches == nil {
		errs = append(errs, errors.New("a source for namespaces, cluster and caches is needed"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if metrics == nil {
		metrics = NewMetrics(nil)
	}
	return &Handler{cfg: cfg, sources: sources, log: log, metrics: metrics, budget: newBudget()}, nil
}

// ServeHTTP answers one review.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	if status, problem := h.check(w, r); status != 0 {
		h.refuse(w, status, problem)
		return
	}
	size := r.ContentLength
	if size < 0 {
		size = h.cfg.MaxBody
	}
	if !h.budget.acquire(r.Context(), size) {
		h.refuse(w, http.StatusServiceUnavailable, "too many reviews at a time")
		return
	}
	defer h.budget.release(size)
	in, out := h.buffer(), h.buffer()
	defer h.release(in)
	defer h.release(out)
	if status, problem := h.read(r, in); status != 0 {
		h.refuse(w, status, problem)
		return
	}
	*out = h.review(r.Context(), *in, *out)
	w.Header()["Content-Type"] = []string{"application/json"}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(*out))}
	if _, err := w.Write(*out); err != nil {
		// The API server has hung up; it treats the call as failed and creates the Pod unchanged.
		h.log.Debug("answer not delivered", "error", err)
	}
	h.metrics.duration.Observe(time.Since(begin).Seconds())
}

func (h *Handler) refuse(w http.ResponseWriter, status int, problem string) {
	h.metrics.refused(status)
	http.Error(w, problem, status)
}

// check looks at all but the body; a status says what is wrong with the request.
func (h *Handler) check(w http.ResponseWriter, r *http.Request) (status int, problem string) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return http.StatusMethodNotAllowed, "want POST"
	}
	if contentType := r.Header.Get("Content-Type"); contentType != "application/json" {
		if media, _, err := mime.ParseMediaType(contentType); err != nil || media != "application/json" {
			return http.StatusUnsupportedMediaType, "want content type application/json"
		}
	}
	if r.Header.Get("Content-Encoding") != "" {
		return http.StatusUnsupportedMediaType, "want no content encoding"
	}
	if r.ContentLength > h.cfg.MaxBody {
		return http.StatusRequestEntityTooLarge, "body too large"
	}
	return 0, ""
}

// read reads the body into *in.
func (h *Handler) read(r *http.Request, in *[]byte) (status int, problem string) {
	var err error
	if *in, err = readAll((*in)[:0], io.LimitReader(r.Body, h.cfg.MaxBody+1), int(r.ContentLength)); err != nil {
		return http.StatusBadRequest, "reading the body failed"
	}
	switch {
	case int64(len(*in)) > h.cfg.MaxBody:
		return http.StatusRequestEntityTooLarge, "body too large"
	case !json.Valid(*in):
		return http.StatusBadRequest, "body is not JSON"
	}
	return 0, ""
}

// review appends the answer to body, which is valid JSON. A panic is a fault of ours for which no Pod shall pay.
func (h *Handler) review(ctx context.Context, body, dst []byte) (answered []byte) {
	review := readReview(body)
	defer func() {
		if p := recover(); p != nil {
			h.metrics.panics.Inc()
			h.log.Error("review panicked, the Pod is left as it is", "panic", p, "stack", string(debug.Stack()))
			answered = appendResponse(dst[:0], review, answer{})
		}
	}()
	return appendResponse(dst[:0], review, h.decide(ctx, review))
}

func (h *Handler) decide(ctx context.Context, r review) answer {
	if !r.ours() {
		return answer{}
	}
	pod, err := poddns.Parse(r.object)
	if err != nil {
		h.metrics.decided(poddns.Malformed, r.dryRun)
		return answer{reason: poddns.Malformed}
	}
	decision := h.judge(ctx, r, pod)
	h.metrics.decided(decision.Reason, r.dryRun)
	if h.log.Enabled(ctx, slog.LevelDebug) {
		h.log.Debug("decided", "namespace", r.namespace, "pod", nameOf(r, pod), "reason", string(decision.Reason), "dry_run", r.dryRun)
	}
	if h.cfg.Policy.Audit {
		if decision.Reason == poddns.AuditMode && !r.dryRun && h.sources.Audited != nil {
			h.sources.Audited(r.namespace)
		}
		return answer{}
	}
	return answer{reason: decision.Reason, patch: poddns.Patch(pod, decision), warnings: decision.Warnings}
}

// judge collects the input and decides. The namespace is the request's: in a Pod that a controller creates the field is
// empty until the API server fills it in.
func (h *Handler) judge(ctx context.Context, r review, pod poddns.Pod) poddns.Decision {
	ns, known := h.sources.Namespace(ctx, r.namespace)
	if !known {
		return poddns.Decision{Reason: poddns.NamespaceUnknown}
	}
	in := poddns.Input{
		Namespace: ns,
		Cluster:   h.sources.Cluster(),
		Policy:    h.cfg.Policy,
		Caches:    h.sources.Caches,
	}
	if h.sources.EgressBlocked != nil {
		in.EgressBlocked = func(labels []byte) bool { return h.sources.EgressBlocked(r.namespace, labels) }
	}
	return poddns.Decide(pod, in)
}

// nameOf is what to call the Pod in a log: until it is stored it may have but the beginning of a name.
func nameOf(r review, pod poddns.Pod) string {
	switch {
	case pod.Name != "":
		return pod.Name
	case r.name != "":
		return r.name
	default:
		return pod.GenerateName + "*"
	}
}

// keep is the largest buffer that goes back for the next review; the rare huge Pod shall not stay in memory.
const keep = 64 << 10

func (h *Handler) buffer() *[]byte {
	if b, ok := h.buffers.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 0, 8<<10)
	return &b
}

func (h *Handler) release(b *[]byte) {
	if cap(*b) <= keep {
		h.buffers.Put(b)
	}
}

// readAll reads r to its end into buf, which has room for size bytes from the start if size is known.
func readAll(buf []byte, r io.Reader, size int) ([]byte, error) {
	if size >= cap(buf) {
		buf = make([]byte, 0, size+1) // one more, so that the end is seen without growing
	}
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}
