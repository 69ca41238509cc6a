package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/nodedns/nodedns/e2e/bed"
)

// metricsPort is where the cache shows its metrics on every node.
const metricsPort = 9253

// Metrics are the samples of one scrape of a node's cache.
type Metrics []sample

type sample struct {
	name   string
	labels string
	value  float64
}

// CacheMetrics scrapes the cache of a node.
func (e *Env) CacheMetrics(ctx context.Context, n *bed.Node) (Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://%s/metrics", netip.AddrPortFrom(n.IP, metricsPort))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: e.Namespace().Dial, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("scraping the cache on %s: %w", n.Name, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("scraping the cache on %s: %w", n.Name, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scraping the cache on %s: %s", n.Name, resp.Status)
	}
	return parseMetrics(string(text)), nil
}

// parseMetrics reads the text format. Lines that are no samples are left out.
func parseMetrics(text string) Metrics {
	var out Metrics
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		if end < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			continue
		}
		name, labels, _ := strings.Cut(line[:end], "{")
		out = append(out, sample{name, strings.TrimSuffix(labels, "}"), value})
	}
	return out
}

// Sum adds up the samples of a metric whose labels contain all the given texts, such as `type="A"`.
func (m Metrics) Sum(name string, labels ...string) float64 {
	var sum float64
next:
	for _, s := range m {
		if s.name != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(s.labels, l) {
				continue next
			}
		}
		sum += s.value
	}
	return sum
}
