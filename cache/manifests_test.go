package main

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nodedns/nodedns/cache/internal/corefile"
)

// manifest reads one of the shipped manifests of the cache.
func manifest(t *testing.T, name string) map[string]any {
	t.Helper()
	return manifestOf(t, "cache/"+name)
}

// manifestOf reads one of the shipped manifests.
func manifestOf(t *testing.T, name string) map[string]any {
	t.Helper()
	b, err := os.ReadFile("../manifests/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := yaml.UnmarshalStrict(b, &m); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return m
}

// at walks down a manifest.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch key := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("%v: no object at %v", path, p)
			}
			v = m[key]
		case int:
			l, ok := v.([]any)
			if !ok || key >= len(l) {
				t.Fatalf("%v: no list at %v", path, p)
			}
			v = l[key]
		}
	}
	return v
}

// TestShippedCorefile: the Corefile of the ConfigMap is valid in every mode, serves what the probes of the DaemonSet ask, and
// is the reference one with more.
func TestShippedCorefile(t *testing.T) {
	text, ok := at(t, manifest(t, "configmap.yaml"), "data", "Corefile").(string)
	if !ok {
		t.Fatal("no Corefile in the ConfigMap")
	}
	local, dns, upstream := netip.MustParseAddr("169.254.25.10"), netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.96.0.11")
	for name, opts := range map[string]corefile.Options{
		"ipvs":     {LocalIPs: []netip.Addr{local}, ClusterDNS: []netip.Addr{dns}},
		"iptables": {LocalIPs: []netip.Addr{local}, ServerIPs: []netip.Addr{dns}, ClusterDNS: []netip.Addr{upstream}},
	} {
		cfg, err := corefile.Parse("Corefile", text, opts)
		if err != nil {
			t.Fatal(err)
		}
		var health, ready string
		cut, zones := 0, ""
		for _, b := range cfg.Blocks {
			if b.Health != nil {
				health = b.Health.Addr
			}
			if b.Ready != nil {
				ready = b.Ready.Addr
			}
			if b.SearchCut != nil {
				cut++
			}
			for _, z := range b.Zones {
				zones += z.Name + " "
			}
			if want := 1 + len(opts.ServerIPs); len(b.Bind) != want {
				t.Errorf("%s: %s binds %v", name, b.Zones[0].Name, b.Bind)
			}
			if b.Cache == nil || b.Errors == nil || b.Reload == nil || !b.Loop || b.Prometheus == nil || len(b.Forward) != 1 {
				t.Errorf("%s: the block of %s lacks something the reference has", name, b.Zones[0].Name)
			}
		}
		if zones != "cluster.local. in-addr.arpa. ip6.arpa. . " || cut != 1 {
			t.Errorf("%s: zones %s, %d with search_cut", name, zones, cut)
		}
		if health != "169.254.25.10:8080" || ready != "169.254.25.10:8181" {
			t.Errorf("%s: health on %s, ready on %s", name, health, ready)
		}
	}
}

// TestDaemonSet: the arguments are ours, the Pod has the rights it needs and no others, and its probes ask where the Corefile
// answers.
func TestDaemonSet(t *testing.T) {
	pod := at(t, manifest(t, "daemonset.yaml"), "spec", "template", "spec")
	container := at(t, pod, "containers", 0)
	var args []string
	for _, a := range at(t, container, "args").([]any) {
		args = append(args, a.(string))
	}
	if _, err := parse(args...); err != nil {
		t.Errorf("arguments %q: %v", args, err)
	}
	for _, tt := range []struct {
		path []any
		want any
	}{
		{[]any{"hostNetwork"}, true},
		{[]any{"dnsPolicy"}, "Default"},
		{[]any{"priorityClassName"}, "system-node-critical"},
		{[]any{"automountServiceAccountToken"}, false},
		{[]any{"tolerations", 0, "operator"}, "Exists"},
		{[]any{"containers", 0, "securityContext", "readOnlyRootFilesystem"}, true},
		{[]any{"containers", 0, "securityContext", "allowPrivilegeEscalation"}, false},
		{[]any{"containers", 0, "startupProbe", "httpGet", "port"}, 8080.0},
		{[]any{"containers", 0, "livenessProbe", "httpGet", "path"}, "/health"},
		{[]any{"containers", 0, "readinessProbe", "httpGet", "port"}, 8181.0},
		{[]any{"volumes", 2, "hostPath", "type"}, "FileOrCreate"},
	} {
		if got := at(t, pod, tt.path...); got != tt.want {
			t.Errorf("%v = %v, want %v", tt.path, got, tt.want)
		}
	}
	var caps []string
	for _, c := range at(t, container, "securityContext", "capabilities", "add").([]any) {
		caps = append(caps, c.(string))
	}
	if got := strings.Join(caps, " "); got != "NET_ADMIN NET_BIND_SERVICE NET_RAW" {
		t.Errorf("capabilities: %s", got)
	}
	if got := at(t, container, "securityContext", "capabilities", "drop", 0); got != "ALL" {
		t.Errorf("dropped: %v", got)
	}
}

// TestServiceNames: the Service is the one whose variable the cache looks for.
func TestServiceNames(t *testing.T) {
	if got := at(t, manifest(t, "service.yaml"), "metadata", "name"); got != upstreamService {
		t.Errorf("the Service is called %v, the cache looks for %s", got, upstreamService)
	}
	if got := serviceVariable(upstreamService); got != "KUBE_DNS_UPSTREAM_SERVICE_HOST" {
		t.Errorf("its variable is %s", got)
	}
}
