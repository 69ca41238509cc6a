package ops

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Check says whether this process answers DNS questions, nil if it does. It must not ask any upstream.
type Check func(ctx context.Context) error

// checkTimeout is how long an answer to /health or /ready may take. The kubelet's own default is one second.
const checkTimeout = 900 * time.Millisecond

// Once makes check cheap to ask often: within age the last result is given again, and calls at the same time share one. The
// check goes on when the one who asked first goes away, since the others share its result.
func Once(check Check, age time.Duration) Check {
	var mu sync.Mutex
	var at time.Time
	var last error
	return func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if !at.IsZero() && time.Since(at) < age {
			return last
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		last = check(ctx)
		at = time.Now()
		return last
	}
}

// HealthHandler answers 200 and OK while check holds, as CoreDNS does; otherwise 503 and the reason.
func HealthHandler(check Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		if err := check(ctx); err != nil {
			answer(w, http.StatusServiceUnavailable, "not answering: "+err.Error()+"\n")
			return
		}
		answer(w, http.StatusOK, "OK")
	})
}

// Detail is one line of the text of /ready.
type Detail struct{ Name, Text string }

// ReadyHandler answers 200 when ready gives no reason against it, else 503. The text names the reasons and then the details,
// for the person who asks why.
func ReadyHandler(ready func(ctx context.Context) []string, details func() []Detail) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		reasons := ready(ctx)
		var b strings.Builder
		status := http.StatusOK
		if len(reasons) == 0 {
			b.WriteString("OK\n")
		} else {
			status = http.StatusServiceUnavailable
			for _, reason := range reasons {
				fmt.Fprintf(&b, "not ready: %s\n", reason)
			}
		}
		for _, d := range details() {
			fmt.Fprintf(&b, "%s: %s\n", d.Name, d.Text)
		}
		answer(w, status, b.String())
	})
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // the client may have gone
}

// MetricsHandler serves what g gathers. A metric that cannot be gathered does not hide the others.
func MetricsHandler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 8, Timeout: 20 * time.Second})
}

// PProfHandler serves the profiles of net/http/pprof, on a mux of its own.
func PProfHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
