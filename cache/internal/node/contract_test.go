package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dump writes down all of the node that is ours to set up, whether it lives in a fake or in a kernel.
func dump(t *testing.T, k kernel, flavour Flavour, fams ...family) string {
	t.Helper()
	var b strings.Builder
	l, err := k.Link(DefaultLink)
	if err == nil {
		var addrs []string
		for _, a := range l.Addrs {
			if !a.IsLinkLocalUnicast() || a.Is4() { // fe80:: comes by itself
				addrs = append(addrs, a.String())
			}
		}
		slices.Sort(addrs)
		fmt.Fprintf(&b, "link %s up=%t %v\n", l.Kind, l.Up, addrs)
	}
	spares, err := k.Spares()
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(spares, func(a, b netip.Addr) int { return a.Compare(b) })
	fmt.Fprintf(&b, "spares %v\n", spares)
	if fams == nil {
		fams = families()
	}
	for _, fam := range fams {
		tab, _, err := k.Tables(fam, flavour, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range ourTables() {
			lines, err := tab.List(tc.table, tc.chains)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range lines {
				fmt.Fprintf(&b, "%s %s %s\n", fam, tc.table, line)
			}
		}
	}
	return b.String()
}

// contract is what every kernel, real or not, must let the node room do. Every sparse-th rule is deleted singly. mk makes a Node as a new process would.
func contract(t *testing.T, k kernel, flavour Flavour, sparse int, fams []family, mk func(t *testing.T) *Node, died func()) {
	ctx := t.Context()
	v4t, _, err := k.Tables(v4, flavour, 0)
	if err != nil {
		t.Fatal(err)
	}
	look := func() string { return dump(t, k, flavour, fams...) }
	var n *Node
	heal := func() {
		for _, s := range n.sides {
			if err := n.applyRules(ctx, s); err != nil {
				t.Error(err)
			}
		}
	}
	// Somebody else's rules, in every chain of ours.
	foreign := func(after func(c chainKey) int) {
		t.Helper()
		for _, tc := range ourTables() {
			var changes []change
			for _, chain := range tc.chains {
				changes = append(changes, change{insert: true, pos: 1 + after(chainKey{tc.table, chain}), chain: chain, spec: somebodys()})
			}
			if err := v4t.Commit(tc.table, changes); err != nil {
				t.Fatal(err)
			}
		}
	}
	foreign(func(chainKey) int { return 0 })
	before := look()
	start := func(t *testing.T) *Node {
		t.Helper()
		n := mk(t)
		if err := n.SetUp(ctx); err != nil {
			t.Fatal(err)
		}
		if err := n.Arm(ctx); err != nil {
			t.Fatal(err)
		}
		if list := n.problems.list(); len(list) > 0 {
			t.Fatalf("problems after arming: %q", list)
		}
		return n
	}
	n = start(t)
	want := look()
	same := func(t *testing.T, want string) {
		t.Helper()
		if diff := cmp.Diff(want, look()); diff != "" {
			t.Errorf("the node is not as it should be (-want +got):\n%s", diff)
		}
	}

	t.Run("apply twice", func(t *testing.T) {
		n.keepLink()
		heal()
		same(t, want)
	})
	t.Run("a new process adopts what a dead one left", func(t *testing.T) {
		died()
		n = start(t)
		same(t, want)
	})
	t.Run("foreign rules untouched", func(t *testing.T) {
		got := look()
		for line := range strings.SplitSeq(before, "\n") {
			if strings.Contains(line, "somebody's") && !strings.Contains(got, line) {
				t.Errorf("gone: %s", line)
			}
		}
	})
	// each makes changes of all rules of a table at once.
	each := func(t *testing.T, ofOurs, ofOthers func(c string, l listed) []change) {
		t.Helper()
		for _, tc := range ourTables() {
			lines, err := v4t.List(tc.table, tc.chains)
			if err != nil {
				t.Fatal(err)
			}
			var changes []change
			for _, chain := range tc.chains {
				for _, l := range parseChain(chain, lines) {
					if l.comment != "" {
						changes = append(changes, ofOurs(chain, l)...)
					} else {
						changes = append(changes, ofOthers(chain, l)...)
					}
				}
			}
			if len(changes) == 0 {
				continue
			}
			if err := v4t.Commit(tc.table, changes); err != nil {
				t.Fatal(err)
			}
		}
	}
	nothing := func(string, listed) []change { return nil }
	drop := func(chain string, l listed) []change { return []change{{chain: chain, spec: l.spec}} }

	t.Run("one rule deleted", func(t *testing.T) {
		for _, c := range eachChain() {
			for i, r := range ours(t, v4t, c) {
				if i%sparse != 0 {
					continue // each check runs some commands; every third rule covers first, middle and last
				}
				if err := v4t.Commit(c.table, drop(c.chain, r)); err != nil {
					t.Fatal(err)
				}
				heal()
				same(t, want)
			}
			if sparse >= 100 {
				break
			}
		}
	})
	t.Run("duplicates", func(t *testing.T) {
		each(t, func(chain string, l listed) []change {
			c := change{insert: true, pos: 1, chain: chain, spec: l.spec}
			return []change{c, c}
		}, nothing)
		heal()
		same(t, want)
	})
	t.Run("everything flushed", func(t *testing.T) {
		each(t, drop, drop)
		heal()
		foreign(func(c chainKey) int { return len(ours(t, v4t, c)) })
		same(t, want)
	})
	t.Run("link and address", func(t *testing.T) {
		a := n.Addrs()[0]
		for _, fault := range []func() error{
			func() error { return k.DelLink(DefaultLink) },
			func() error { return k.DelAddr(DefaultLink, a) },
			func() error { return k.DelSpare(a) },
		} {
			if err := fault(); err != nil {
				t.Fatal(err)
			}
			n.keepLink()
			same(t, want)
		}
	})
	t.Run("leave twice", func(t *testing.T) {
		if err := n.TearDown(ctx); err != nil {
			t.Fatal(err)
		}
		left := look()
		if err := n.TearDown(ctx); err != nil {
			t.Fatal(err)
		}
		same(t, left)
		if strings.Contains(left, " raw -A OUTPUT -d 169") || !strings.Contains(left, "up=true [169.254.25.10") {
			t.Errorf("left behind, want the local address and no raw rules:\n%s", left)
		}
		n = start(t)
		same(t, want)
	})
	t.Run("clear twice", func(t *testing.T) {
		if err := n.TearDown(ctx); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := cleanup(ctx, "", slog.New(slog.DiscardHandler), k, n.kind); err != nil {
				t.Fatal(err)
			}
			same(t, before)
		}
	})
}

// ours lists our rules in a chain.
func ours(t *testing.T, tab tables, c chainKey) []listed {
	t.Helper()
	lines, err := tab.List(c.table, []string{c.chain})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(parseChain(c.chain, lines), func(l listed) bool { return l.comment == "" })
}

// somebodys is a rule that is not ours.
func somebodys() []string {
	return []string{"-s", "192.0.2.0/24", "-m", "comment", "--comment", "somebody's", "-j", "ACCEPT"}
}

// contractConfigs are the set-ups that the contract holds for.
func contractConfigs() map[string]Config {
	return map[string]Config{
		"ipvs":       {Mode: IPVS, Guard: LevelSocket},
		"ipvs lease": {Mode: IPVS, Guard: LevelLease},
		"ipvs plain": {Mode: IPVS, Guard: LevelPlain},
		"iptables":   {Mode: IPTables, Guard: LevelSocket},
		"tracked":    {Mode: IPVS, Guard: LevelSocket, Tracked: true},
		"dual": {
			Mode: IPVS, Guard: LevelSocket,
			Local: addrs("169.254.25.10", "fd00::25:10"), ClusterIP: addrs("10.96.0.10", "fd00:96::a"),
		},
	}
}

func TestContractOnFake(t *testing.T) {
	for name, cfg := range contractConfigs() {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			contract(t, f, Legacy, 1, families(), func(t *testing.T) *Node { return makeNode(t, cfg, f, kindOurs) }, f.kill)
		})
	}
	t.Run("owner", func(t *testing.T) {
		f := newFake()
		contract(t, f, Legacy, 1, families(), func(t *testing.T) *Node { return makeNode(t, Config{}, f, kindOurs) }, f.kill)
	})
}

func TestKernelContract(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		sparse := 3
		for name, cfg := range contractConfigs() {
			if p.uml {
				if sparse = 100; name != "ipvs" {
					continue // a command takes long there
				}
			}
			fams := []family{v4}
			if name == "dual" {
				fams = families()
			}
			t.Run(name, func(t *testing.T) {
				contract(t, p.host(), p.flavour, sparse, fams, func(t *testing.T) *Node { return p.node(t, cfg) }, func() {})
				for _, c := range eachChain() {
					tab, _, err := p.host().Tables(v4, p.flavour, 0)
					if err != nil {
						t.Fatal(err)
					}
					if err := tab.Commit(c.table, []change{{chain: c.chain, spec: somebodys()}}); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	})
}

// answering is a Proof that holds unless it is told otherwise.
type answering struct{ err func() error }

func (a answering) Prove(context.Context) error {
	if a.err == nil {
		return nil
	}
	return a.err()
}
