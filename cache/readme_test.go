package main

import (
	"flag"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// namesOfFlags lists the flags of nodedns-cache, sorted, with their dash.
func namesOfFlags() []string {
	fs, _ := newFlagSet()
	var names []string
	fs.VisitAll(func(f *flag.Flag) { names = append(names, "-"+f.Name) })
	return names
}

// namesOfMetrics lists the metrics of nodedns-cache, sorted, but for those of Go and the process.
func namesOfMetrics() []string {
	descs := make(chan *prometheus.Desc)
	go func() {
		newMetrics().registry.Describe(descs)
		close(descs)
	}()
	fqName := regexp.MustCompile(`fqName: "((?:coredns|nodedns)_[^"]*)"`)
	var names []string
	for d := range descs {
		if m := fqName.FindStringSubmatch(d.String()); m != nil {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TestNamesAreComplete: the lists that the README is compared with reach every room.
func TestNamesAreComplete(t *testing.T) {
	names := namesOfMetrics()
	for _, want := range []string{
		"coredns_dns_requests_total", "coredns_cache_hits_total", "coredns_proxy_request_duration_seconds", "nodedns_tcp_connections",
		"nodedns_node_guard_level", "coredns_reload_failed_total", "coredns_nodecache_setup_errors_total", "coredns_build_info",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing in %q", want, names)
		}
	}
	if flags := namesOfFlags(); !slices.Contains(flags, "-localip") || !slices.Contains(flags, "-dns.port") {
		t.Errorf("flags: %q", flags)
	}
}
