package parts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The Kubernetes programs report the version of the module they are built from.
func TestKubernetesVersionIsTheModules(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "e2e/components/kubernetes/go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "\nrequire k8s.io/kubernetes " + kubernetesVersion + "\n"; !strings.Contains(string(mod), want) {
		t.Errorf("components/kubernetes/go.mod does not hold %q", want)
	}
}

// A part's key changes with its flags and its module's files, and only then.
func TestKey(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "e2e", "components", "m")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &builder{root: root, bin: t.TempDir()}
	key := func(p Part, mod string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o644); err != nil {
			t.Fatal(err)
		}
		k, err := b.key(p)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key(Part{Name: "x", Module: "m"}, "v1")
	if key(Part{Name: "x", Module: "m"}, "v1") != first {
		t.Error("same part, other key")
	}
	if key(Part{Name: "x", Module: "m"}, "v2") == first {
		t.Error("other version of the module, same key")
	}
	if key(Part{Name: "x", Module: "m", Tags: "seccomp"}, "v1") == first {
		t.Error("other build tags, same key")
	}
	if b.have(Part{Name: "x", Module: "m"}, first) {
		t.Error("a part that was never built counts as there")
	}
}
