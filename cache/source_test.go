package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestC08SymlinkSwap: the kubelet changes a ConfigMap by swapping the symlink ..data.
func TestC08SymlinkSwap(t *testing.T) {
	one, two := newUpstream(t, "192.0.2.7"), newUpstream(t, "192.0.2.8")
	dir, port := t.TempDir(), freePort(t)
	version := func(name, text string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "Corefile.base"), strings.ReplaceAll(text, "PORT", port))
		if err := os.Symlink(name, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", block(".", one.addr, "reload 2s 0s"))
	if err := os.Symlink("..data/Corefile.base", filepath.Join(dir, "Corefile.base")); err != nil {
		t.Fatal(err)
	}
	c := launch(t, dir, port, nil, "-conf", "Corefile", "-basecorefile", "Corefile.base")
	c.waitReady()
	for i, up := range []*upstreamServer{two, one, two} {
		version(fmt.Sprintf("..%d", i+2), block(".", up.addr, "reload 2s 0s"))
		n := 0
		c.eventually("the swap takes effect", func() bool { n++; return c.ask(fmt.Sprintf("n%d-%d.test", i, n)) == up.ip })
	}
}

// TestC08Precedence: the template goes before a Corefile, whatever an older run left there; alone, either is used; nothing
// is ever written.
func TestC08Precedence(t *testing.T) {
	base, plain := newUpstream(t, "192.0.2.7"), newUpstream(t, "192.0.2.8")
	for _, tt := range []struct {
		name  string
		files map[string]*upstreamServer
		want  string
	}{
		{"both", map[string]*upstreamServer{"Corefile.base": base, "Corefile": plain}, "192.0.2.7"},
		{"only the template", map[string]*upstreamServer{"Corefile.base": base}, "192.0.2.7"},
		{"only the Corefile", map[string]*upstreamServer{"Corefile": plain}, "192.0.2.8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, port := t.TempDir(), freePort(t)
			for name, up := range tt.files {
				write(t, filepath.Join(dir, name), strings.ReplaceAll(block(".", up.addr), "PORT", port))
			}
			c := launch(t, dir, port, nil, "-conf", "Corefile", "-basecorefile", "Corefile.base")
			c.waitReady()
			if got := c.ask("a.test"); got != tt.want {
				t.Errorf("served: %s, want %s", got, tt.want)
			}
			files, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if len(files) != len(tt.files) {
				t.Errorf("files were written: %v", files)
			}
		})
	}
}

// TestC08MissingFile: the start waits a bounded time for a Corefile, then says which files it looked for.
func TestC08MissingFile(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	c := launch(t, dir, port, nil, "-conf", "Corefile", "-basecorefile", "Corefile.base", "-wait", "300ms")
	if code := c.exits(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"waiting for a Corefile", "Corefile.base (-basecorefile)", "Corefile (-conf)", "not within 300ms"} {
		if !strings.Contains(c.said(), want) {
			t.Errorf("the message lacks %q: %s", want, c.said())
		}
	}
	up := newUpstream(t, "192.0.2.7")
	c = launch(t, dir, port, nil, "-conf", "Corefile", "-basecorefile", "Corefile.base")
	c.eventually("the process waits", func() bool { return strings.Contains(c.said(), "waiting for a Corefile") })
	write(t, filepath.Join(dir, "Corefile.base"), strings.ReplaceAll(block(".", up.addr), "PORT", port))
	c.waitReady()
	if got := c.ask("a.test"); got != "192.0.2.7" {
		t.Errorf("served: %s", got)
	}
}

// TestC08WaitIsInterrupted: SIGTERM while waiting ends the wait.
func TestC08WaitIsInterrupted(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	c := launch(t, dir, port, nil, "-conf", "Corefile")
	c.eventually("the process waits", func() bool { return strings.Contains(c.said(), "waiting for a Corefile") })
	c.signal(syscall.SIGTERM)
	if code := c.exits(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestC07KubeDNSDirectory: stub domains of the mounted ConfigMap come, change and go; bad JSON keeps the last good version and
// is counted.
func TestC07KubeDNSDirectory(t *testing.T) {
	root, one, two := newUpstream(t, "192.0.2.1"), newUpstream(t, "192.0.2.7"), newUpstream(t, "192.0.2.8")
	dir := t.TempDir()
	cm := filepath.Join(dir, "cm")
	if err := os.Mkdir(cm, 0o700); err != nil {
		t.Fatal(err)
	}
	port, prom := freePort(t), "127.0.0.1:"+freePort(t)
	stubs := filepath.Join(cm, "stubDomains")
	write(t, stubs, fmt.Sprintf(`{"corp.example":[%q],"bad.example":["cluster.local"]}`, one.addr))
	write(t, filepath.Join(dir, "Corefile.base"), strings.ReplaceAll(block(".", "__PILLAR__UPSTREAM__SERVERS__", "prometheus "+prom), "PORT", port))
	write(t, filepath.Join(cm, "upstreamNameservers"), fmt.Sprintf(`[%q, "dns.example.test"]`, root.addr))
	c := launch(t, dir, port, nil, "-basecorefile", "Corefile.base", "-kubednscm", cm, "-dns.port", port, "-localip", "127.0.0.1")
	c.waitReady()
	if got := c.ask("a.corp.example"); got != "192.0.2.7" {
		t.Errorf("stub domain: %s", got)
	}
	if got := c.ask("a.test"); got != "192.0.2.1" {
		t.Errorf("upstream servers: %s", got)
	}
	const series = `coredns_nodecache_setup_errors_total{errortype="configmap"}`
	if got := metric(t, prom, series); got != "1" {
		t.Errorf("setup errors: %q, want 1 for the two bad entries", got)
	}
	write(t, stubs, `{"corp.example":[`)
	c.reload()
	if got := c.ask("b.corp.example"); got != "192.0.2.7" {
		t.Errorf("with bad JSON: %s", got)
	}
	if got := metric(t, prom, series); got != "2" {
		t.Errorf("setup errors: %q, want 2", got)
	}
	write(t, stubs, fmt.Sprintf(`{"corp.example":[%q]}`, two.addr))
	c.reload()
	if got := c.ask("c.corp.example"); got != "192.0.2.8" {
		t.Errorf("changed stub domain: %s", got)
	}
	if err := os.Remove(stubs); err != nil {
		t.Fatal(err)
	}
	c.reload()
	if got := c.ask("d.corp.example"); got != "192.0.2.1" {
		t.Errorf("without stub domain: %s", got)
	}
}
