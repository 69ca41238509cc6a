package house_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/nodedns/nodedns/"

// edge forbids packages below From to import packages below To.
type edge struct {
	From, To, Reason string
	Deep             bool // also through other packages
}

var edges = []edge{
	{"cache", "k8s.io/", "the cache has no API token and no RBAC: it learns from flags, environment, files and the node", true},
	{"cache", "sigs.k8s.io/", "the cache has no API token and no RBAC: it learns from flags, environment, files and the node", true},
	{"cache", module + "webhook", "the node part must build, run and be understood without the cluster part", true},
	{"cache", module + "certs", "the cache serves no TLS", true},
	{"webhook", module + "cache", "the cluster part must build, run and be understood without the node part", true},
	{"certs", module + "webhook", "certs serves whoever asks for a certificate", true},
	{"certs", module + "cache", "certs serves whoever asks for a certificate", true},

	{"cache/internal/wire", module + "cache/internal/", "wire is bytes; every other room may use it, so it uses none", false},
	{"cache/internal/store", module + "cache/internal/resolve", "store keeps, resolve decides", true},
	{"cache/internal/store", "github.com/miekg/dns", "store keeps what wire packed; it never reads a record", false},
	{"cache/internal/resolve", module + "cache/internal/forward", "resolve declares the upstream it needs; main gives it one", true},
	{"cache/internal/resolve", module + "cache/internal/listen", "only listen writes to sockets, and it calls resolve", true},
	{"cache/internal/forward", module + "cache/internal/resolve", "forward asks; it does not know why", true},
	{"cache/internal/forward", module + "cache/internal/store", "forward asks; it does not know what is kept", true},
	{"cache/internal/listen", module + "cache/internal/store", "listen moves bytes between sockets and a handler", true},
	{"cache/internal/listen", "github.com/miekg/dns", "listen moves bytes between sockets and a handler", false},
	{"cache/internal/corefile", module + "cache/internal/", "a configuration is text and values", true},
	{"cache/internal/corefile", "github.com/miekg/dns", "a configuration is text and values", false},
	{"cache/internal/node", "github.com/miekg/dns", "node moves packets by address and port; what is in them is not its business", true},
	{"cache/internal/node", module + "cache/internal/", "node is told whether the process answers (Proof); it does not know how", true},
}

// TestImportRules keeps the rooms apart.
func TestImportRules(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps",
		"./cache/...", "./webhook/...", "./certs/...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := map[string]bool{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath    string
			Imports, Deps []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, e := range edges {
			if !below(p.ImportPath, module+e.From) {
				continue
			}
			seen[e.From] = true
			imports := p.Imports
			if e.Deep {
				imports = p.Deps
			}
			for _, to := range imports {
				if to != p.ImportPath && strings.HasPrefix(to+"/", strings.TrimSuffix(e.To, "/")+"/") && !below(to, module+e.From) {
					t.Errorf("%s imports %s: %s", p.ImportPath, to, e.Reason)
				}
			}
		}
	}
	for _, e := range edges {
		if !seen[e.From] {
			t.Errorf("the rule on %s guards no package: was the room moved?", e.From)
		}
	}
}

func below(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }
