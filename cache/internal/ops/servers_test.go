package ops

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs s for the rest of the test.
func start(t *testing.T, s *Servers) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
}

// eventually waits for cond.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func get(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func text(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) })
}

// port returns an address of loopback that was free a moment ago.
func port(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// serves tells whether addr answers with a page at path.
func serves(t *testing.T, addr, path string) func() bool {
	return func() bool { status, _ := get(t, addr, path); return status == http.StatusOK }
}

// TestN14TakenPort: a taken health port is reported and tried again; nothing else suffers.
func TestN14TakenPort(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken, free := other.Addr().String(), port(t)
	var mu sync.Mutex
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return logged.Write(p) }), nil))
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, Build{Version: "test"}, nil)
	s := NewServers(log, m)
	s.Set([]Endpoint{{Health, taken, text("health")}, {Metrics, free, text("metrics")}})
	start(t, s)
	eventually(t, "the free address is served", serves(t, free, "/metrics"))
	eventually(t, "the taken address is reported", func() bool { return len(s.Failed()) == 1 })
	if got := s.Failed()[0]; !strings.HasPrefix(got, taken) || !strings.Contains(got, "in use") {
		t.Errorf("Failed() = %q", got)
	}
	if status, body := get(t, free, "/metrics"); status != 200 || body != "metrics" {
		t.Errorf("the other server: %d %s", status, body)
	}
	if v := testutil.ToFloat64(m.endpointUp.WithLabelValues("health")); v != 0 {
		t.Errorf("gauge of health = %v", v)
	}
	if v := testutil.ToFloat64(m.endpointUp.WithLabelValues("metrics")); v != 1 {
		t.Errorf("gauge of metrics = %v", v)
	}
	other.Close()
	eventually(t, "the freed address is served", serves(t, taken, "/health"))
	if status, body := get(t, taken, "/health"); status != 200 || body != "health" {
		t.Errorf("health after the port was freed: %d %s", status, body)
	}
	eventually(t, "no failure is left", func() bool { return s.Failed() == nil })
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(logged.String(), "cannot listen"); n != 1 {
		t.Errorf("reported %d times, want once:\n%s", n, logged.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestSetKeepsServers: a reload that keeps an address keeps its connections, takes the new handler, and closes what is no
// longer wanted.
func TestSetKeepsServers(t *testing.T) {
	one, two := port(t), port(t)
	s := NewServers(slog.New(slog.DiscardHandler), nil)
	s.Set([]Endpoint{{Health, one, text("old")}, {Ready, one, text("ready")}, {PProf, two, text("pprof")}})
	start(t, s)
	eventually(t, "both are served", func() bool { return serves(t, one, "/health")() && serves(t, two, "/debug/pprof/")() })
	tr := &http.Transport{}
	client := &http.Client{Transport: tr}
	defer tr.CloseIdleConnections()
	ask := func(path string) string {
		resp, err := client.Get("http://" + one + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := ask("/health") + ask("/ready"); got != "oldready" {
		t.Errorf("before: %q", got)
	}
	var dials int
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	s.Set([]Endpoint{{Health, one, text("new")}})
	if got := ask("/health"); got != "new" {
		t.Errorf("after: %q", got)
	}
	if dials != 0 {
		t.Errorf("the connection was closed by a reload that kept the address")
	}
	eventually(t, "the dropped address is closed", func() bool { status, _ := get(t, two, "/debug/pprof/"); return status == 0 })
}

func TestHealth(t *testing.T) {
	var err error
	h := HealthHandler(func(context.Context) error { return err })
	if status, body := serve(h, "/health"); status != 200 || body != "OK" {
		t.Errorf("well: %d %q", status, body)
	}
	err = errors.New("no reply over udp from 169.254.25.10:53")
	if status, body := serve(h, "/health"); status != 503 || !strings.Contains(body, "no reply over udp") {
		t.Errorf("ill: %d %q", status, body)
	}
}

func TestReady(t *testing.T) {
	var reasons []string
	h := ReadyHandler(func(context.Context) []string { return reasons }, func() []Detail {
		return []Detail{{"guard", "owner"}, {"mode", "ipvs"}}
	})
	if status, body := serve(h, "/ready"); status != 200 || body != "OK\nguard: owner\nmode: ipvs\n" {
		t.Errorf("ready: %d %q", status, body)
	}
	reasons = []string{"draining"}
	if status, body := serve(h, "/ready"); status != 503 || !strings.HasPrefix(body, "not ready: draining\n") || !strings.Contains(body, "mode: ipvs") {
		t.Errorf("not ready: %d %q", status, body)
	}
}

func serve(h http.Handler, path string) (int, string) {
	w := &recorder{header: make(http.Header)}
	req, _ := http.NewRequest(http.MethodGet, path, nil)
	h.ServeHTTP(w, req)
	return w.status, w.body.String()
}

type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(s int)           { r.status = s }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// TestOnce: a flood of health questions does not become a flood of DNS questions.
func TestOnce(t *testing.T) {
	calls := 0
	c := Once(func(context.Context) error { calls++; return errors.New("x") }, time.Hour)
	for range 5 {
		if err := c(t.Context()); err == nil {
			t.Error("the result is lost")
		}
	}
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	c = Once(func(ctx context.Context) error { return ctx.Err() }, time.Hour)
	if err := c(gone); err != nil {
		t.Errorf("a client that left spoils the result of the others: %v", err)
	}
}
