package ops

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestMetricNames lints the metrics with promlint and holds the names that dashboards of the incumbent rely on.
func TestMetricNames(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, Build{Version: "1.2.3", Revision: "abc"}, func() SetupErrors { return SetupErrors{SetupRules: 7} })
	m.Loaded("00ff", true)
	m.ReloadFailed()
	m.ConfigMapFailed()
	m.endpoints(map[string][]Kind{":8080": {Health}}, nil)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	want := `
# HELP coredns_nodecache_setup_errors_total Errors in the set-up of the node or its configuration, by kind.
# TYPE coredns_nodecache_setup_errors_total counter
coredns_nodecache_setup_errors_total{errortype="configmap"} 1
coredns_nodecache_setup_errors_total{errortype="interface_add"} 0
coredns_nodecache_setup_errors_total{errortype="interface_check"} 0
coredns_nodecache_setup_errors_total{errortype="iptables"} 7
coredns_nodecache_setup_errors_total{errortype="iptables_lock"} 0
# HELP coredns_reload_failed_total Changes of the configuration that could not be loaded; the old one stayed in force.
# TYPE coredns_reload_failed_total counter
coredns_reload_failed_total 1
# HELP coredns_reload_version_info A constant 1, labelled with the hash of the configuration in force.
# TYPE coredns_reload_version_info gauge
coredns_reload_version_info{hash="sha256",value="00ff"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want),
		"coredns_nodecache_setup_errors_total", "coredns_reload_failed_total", "coredns_reload_version_info"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"coredns_build_info", "go_goroutines", "process_resident_memory_bytes"} {
		if n, err := testutil.GatherAndCount(reg, name); err != nil || n != 1 {
			t.Errorf("%s: %d series, %v", name, n, err)
		}
	}
}
