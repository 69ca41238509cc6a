package node

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// TestKernelGolden compares what iptables-save prints with testdata: while in service, and after leaving.
func TestKernelGolden(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		for _, c := range []struct {
			name string
			cfg  Config
		}{
			{"ipvs", Config{Mode: IPVS, Guard: LevelSocket}},
			{"iptables", Config{Mode: IPTables, Guard: LevelSocket}},
			{"ipvs-tracked", Config{Mode: IPVS, Guard: LevelSocket, Tracked: true}},
			{"ipvs-ipv6", Config{Mode: IPVS, Guard: LevelSocket, Local: addrs("fd00::25:10"), ClusterIP: addrs("fd00:96::a")}},
		} {
			if p.uml && c.name == "ipvs-tracked" {
				continue // a command takes long there
			}
			t.Run(c.name, func(t *testing.T) {
				n := p.node(t, c.cfg)
				if err := n.SetUp(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := n.Arm(t.Context()); err != nil {
					t.Fatal(err)
				}
				golden(t, c.name+".rules", savedRules(t, p, n))
				if err := n.TearDown(t.Context()); err != nil {
					t.Fatal(err)
				}
				golden(t, c.name+"-left.rules", savedRules(t, p, n))
				if err := cleanup(t.Context(), "", n.log, n.kernel, n.kind); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}

// savedRules is iptables-save of our tables, without counters and remarks.
func savedRules(t *testing.T, p place, n *Node) string {
	t.Helper()
	command := plainCommand(familyOf(n.cfg.Local[0])) + "-" + string(p.flavour) + "-save"
	var b strings.Builder
	for _, table := range []string{"raw", "filter", "nat"} {
		out := sh(t, command+" -t "+table)
		for line := range strings.SplitSeq(out, "\n") {
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			b.WriteString(regexp.MustCompile(` \[\d+:\d+\]$`).ReplaceAllString(line, "") + "\n")
		}
	}
	return b.String()
}

// golden compares got with a file of testdata, or writes it with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
