package poddns

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// goldenInput is the input.yaml of a case; whatever it leaves out is as in defaultInput.
type goldenInput struct {
	Namespace     *string           `json:"namespace"`
	Labels        map[string]string `json:"labels"`
	Annotations   map[string]string `json:"annotations"`
	LocalIPs      []netip.Addr      `json:"localIPs"`
	ClusterIPs    []netip.Addr      `json:"clusterIPs"`
	HostSearches  []string          `json:"hostSearches"`
	UnknownDNS    bool              `json:"unknownDNS"`
	Caches        string            `json:"caches"` // none, some, all
	EgressBlocked bool              `json:"egressBlocked"`
	Policy        Policy            `json:"policy"`
}

func (g goldenInput) input(t *testing.T) Input {
	t.Helper()
	name := "shop"
	if g.Namespace != nil {
		name = *g.Namespace
	}
	if g.Labels == nil {
		g.Labels = map[string]string{InjectionLabel: Enabled}
	}
	if g.LocalIPs == nil {
		g.LocalIPs = []netip.Addr{netip.MustParseAddr("169.254.25.10")}
	}
	if g.ClusterIPs == nil {
		g.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	}
	in := Input{
		Namespace: NewNamespace(name, g.Labels, g.Annotations),
		Cluster: Cluster{LocalIPs: g.LocalIPs, ClusterIPs: g.ClusterIPs, Domain: "cluster.local",
			HostSearches: g.HostSearches, HostSearchesKnown: true},
		Policy: g.Policy,
	}
	in.Policy.OwnNamespace = "nodedns"
	if g.UnknownDNS {
		in.Cluster = Cluster{}
	}
	state, ok := map[string]Caches{"": CachesAllReady, "all": CachesAllReady, "some": CachesReady, "none": CachesNotReady}[g.Caches]
	if !ok {
		t.Fatalf("caches: %q is not none, some or all", g.Caches)
	}
	in.Caches = func(Placement) Caches { return state }
	in.EgressBlocked = func([]byte) bool { return g.EgressBlocked }
	return in
}

// TestGolden runs testdata/<case>: pod.yaml and perhaps input.yaml in, want.patch.json and want.reason out.
func TestGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/*/pod.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	seen := map[Reason]bool{Malformed: true, NamespaceUnknown: true} // found before there is a Pod to decide on
	for _, path := range cases {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			object := readYAML(t, path)
			in := readInput(t, dir)
			pod, err := Parse(object)
			if err != nil {
				t.Fatal(err)
			}
			decision := Decide(pod, in)
			seen[decision.Reason] = true
			patch := Patch(pod, decision)
			golden(t, filepath.Join(dir, "want.patch.json"), pretty(t, patch))
			golden(t, filepath.Join(dir, "want.reason"), []byte(strings.Join(append([]string{string(decision.Reason)}, decision.Warnings...), "\n")+"\n"))
			againUnchanged(t, object, patch, in)
		})
	}
	for _, reason := range Reasons() {
		if !seen[reason] {
			t.Errorf("no golden case for reason %s", reason)
		}
	}
}

// againUnchanged applies patch strictly and wants a second call to find nothing to do, and nothing lost.
func againUnchanged(t *testing.T, object, patch []byte, in Input) {
	t.Helper()
	if patch == nil {
		return
	}
	patched := apply(t, object, patch)
	pod, err := Parse(patched)
	if err != nil {
		t.Fatal(err)
	}
	second := Decide(pod, in)
	if second.Reason != AlreadyInjected || Patch(pod, second) != nil {
		t.Errorf("second call: reason %s, patch %s; want none", second.Reason, Patch(pod, second))
	}
}

func apply(t *testing.T, object, patch []byte) []byte {
	t.Helper()
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatalf("decoding patch %s: %v", patch, err)
	}
	options := jsonpatch.NewApplyOptions()
	options.AllowMissingPathOnRemove = false
	options.EnsurePathExistsOnAdd = false
	out, err := p.ApplyWithOptions(object, options)
	if err != nil {
		t.Fatalf("applying patch %s: %v", patch, err)
	}
	return out
}

func readYAML(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	object, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return object
}

func readInput(t *testing.T, dir string) Input {
	t.Helper()
	var g goldenInput
	text, err := os.ReadFile(filepath.Join(dir, "input.yaml"))
	if err == nil {
		err = yaml.UnmarshalStrict(text, &g)
	} else if os.IsNotExist(err) {
		err = nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return g.input(t)
}

func pretty(t *testing.T, patch []byte) []byte {
	t.Helper()
	if patch == nil {
		return []byte("[]\n")
	}
	var out bytes.Buffer
	if err := json.Indent(&out, patch, "", "  "); err != nil {
		t.Fatalf("patch %s: %v", patch, err)
	}
	return append(out.Bytes(), '\n')
}

// update is a function, not a variable, so that the package keeps no mutable state of its own.
func update() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the golden files anew")
	flag.Parse()
	os.Exit(m.Run())
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if update() {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got), -update writes it anew:\n%s", path, diff)
	}
}
