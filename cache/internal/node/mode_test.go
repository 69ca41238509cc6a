package node

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// proxyMetrics stands in for kube-proxy's metrics server.
type proxyMetrics struct {
	addr string
	mu   sync.Mutex
	mode string
}

func newProxyMetrics(t *testing.T) *proxyMetrics {
	t.Helper()
	p := &proxyMetrics{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.mode == "" || r.URL.Path != "/proxyMode" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, p.mode)
	}))
	t.Cleanup(s.Close)
	p.addr = strings.TrimPrefix(s.URL, "http://")
	return p
}

func (p *proxyMetrics) say(mode string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = mode
}

func endpointsOf(to string, list ...string) map[netip.AddrPort][]netip.AddrPort {
	out := map[netip.AddrPort][]netip.AddrPort{}
	for _, s := range list {
		out[netip.MustParseAddrPort(to)] = append(out[netip.MustParseAddrPort(to)], netip.MustParseAddrPort(s))
	}
	return out
}

// natRules are the DNAT rules of a fake.
func natRules(f *fake) string {
	var out []string
	for line := range strings.SplitSeq(f.String(), "\n") {
		if strings.Contains(line, "-j DNAT") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func TestDetectMode(t *testing.T) {
	p := newProxyMetrics(t)
	for _, mode := range []Mode{IPVS, IPTables, NFTables} {
		p.say(string(mode) + "\n")
		// The first address does not answer.
		got, err := DetectMode(t.Context(), []string{"127.0.0.1:1", p.addr})
		if err != nil || got != mode {
			t.Errorf("got %s, %v; want %s", got, err, mode)
		}
	}
	for _, answer := range []string{"", "userspace", strings.Repeat("ipvs", 1000)} {
		p.say(answer)
		got, err := DetectMode(t.Context(), []string{p.addr})
		if !errors.Is(err, ErrNoMode) || got != "" || !strings.Contains(err.Error(), "-mode") {
			t.Errorf("answer %.20q: got %q, %v; want no guess and an error that says what to do", answer, got, err)
		}
	}
}
