package node

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// mortal is a kernel whose process dies: after some changes no further one happens.
type mortal struct {
	*fake
	left int
}

var errDead = errors.New("the process is dead")

// step says whether the process lives to make one more change.
func (m *mortal) step() error {
	if m.left == 0 {
		return errDead
	}
	m.left--
	return nil
}

// alive makes one change if the process lives to.
func (m *mortal) alive(change func() error) error {
	if err := m.step(); err != nil {
		return err
	}
	return change()
}

func (m *mortal) AddLink(n string) error {
	return m.alive(func() error { return m.fake.AddLink(n) })
}

func (m *mortal) SetUp(n string) error {
	return m.alive(func() error { return m.fake.SetUp(n) })
}

func (m *mortal) DelLink(n string) error {
	return m.alive(func() error { return m.fake.DelLink(n) })
}

func (m *mortal) AddAddr(n string, a netip.Addr) error {
	return m.alive(func() error { return m.fake.AddAddr(n, a) })
}

func (m *mortal) DelAddr(n string, a netip.Addr) error {
	return m.alive(func() error { return m.fake.DelAddr(n, a) })
}

func (m *mortal) AddSpare(a, source netip.Addr) error {
	return m.alive(func() error { return m.fake.AddSpare(a, source) })
}

func (m *mortal) DelSpare(a netip.Addr) error {
	return m.alive(func() error { return m.fake.DelSpare(a) })
}

func (m *mortal) EnsureSet(n string, f family, d time.Duration) error {
	return m.alive(func() error { return m.fake.EnsureSet(n, f, d) })
}

func (m *mortal) AddSet(n string, a netip.Addr, d time.Duration) error {
	return m.alive(func() error { return m.fake.AddSet(n, a, d) })
}

func (m *mortal) DelSet(n string, a netip.Addr) error {
	return m.alive(func() error { return m.fake.DelSet(n, a) })
}

func (m *mortal) DestroySet(n string) error {
	return m.alive(func() error { return m.fake.DestroySet(n) })
}

func (m *mortal) Owner(spec owned) (lease, error) {
	if err := m.step(); err != nil {
		return nil, err
	}
	return m.fake.Owner(spec)
}

func (m *mortal) Tables(fam family, f Flavour, d time.Duration) (tables, Flavour, error) {
	t, is, err := m.fake.Tables(fam, f, d)
	return mortalTables{t, m}, is, err
}

type mortalTables struct {
	tables
	m *mortal
}

func (t mortalTables) Commit(table string, changes []change) error {
	return t.m.alive(func() error { return t.tables.Commit(table, changes) })
}

func (t mortalTables) Try(table string, spec ...string) error {
	return t.m.alive(func() error { return t.tables.Try(table, spec...) })
}

// TestKilledAtEachStep lets the process die after each single change of a start and of a stop. Whatever the step, a Pod
// must be led to cluster DNS, and the next start must make the node whole.
func TestKilledAtEachStep(t *testing.T) {
	for name, cfg := range map[string]Config{
		"ipvs owner":      {Mode: IPVS},
		"ipvs socket":     {Mode: IPVS, Guard: LevelSocket},
		"iptables socket": {Mode: IPTables, Guard: LevelSocket},
		"nftables owner":  {Mode: NFTables},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.endpoints = endpointsOf("10.96.0.10:53", "10.244.0.7:53")
			serviceRules(f, "10.96.0.10", "10.244.0.7:53")
			cfg.Patience = time.Second
			life := func(changes int) (whole string) {
				m := &mortal{fake: f, left: changes}
				n := makeNode(t, cfg, m, kindOurs)
				if n.SetUp(t.Context()) == nil {
					_ = n.Arm(t.Context())
					n.renew()
					whole = f.String()
					n.drop()
					_ = n.TearDown(t.Context())
				}
				f.kill()
				return whole
			}
			whole := life(-1) // lives, and leaves
			left := f.String()
			unharmed(t, f, cfg, "after leaving")
			for step := range 100 {
				m := life(step)
				unharmed(t, f, cfg, "killed after step")
				if again := life(-1); again != whole {
					t.Errorf("killed after step %d, the next start made something else:\n%s", step, cmp.Diff(whole, again))
				}
				if after := f.String(); after != left {
					t.Errorf("killed after step %d, the next end left something else:\n%s", step, cmp.Diff(left, after))
				}
				if m == whole && step > 50 {
					break
				}
			}
		})
	}
}

// serviceRules are kube-proxy's in iptables mode.
func serviceRules(f *fake, ip string, endpoint string) {
	for k, line := range map[string]string{
		"KUBE-SERVICES":  "-A KUBE-SERVICES -d " + ip + "/32 -p udp -m udp --dport 53 -j KUBE-SVC-DNS",
		"KUBE-SVC-DNS":   "-A KUBE-SVC-DNS -j KUBE-SEP-DNS",
		"KUBE-SEP-DNS":   "-A KUBE-SEP-DNS -p udp -j DNAT --to-destination " + endpoint,
		"KUBE-MARK-MASQ": "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
	} {
		f.rules[v4].chains[chainKey{"nat", k}] = []string{line}
	}
}

// unharmed checks that a node without a cache leads a Pod to cluster DNS.
func unharmed(t *testing.T, f *fake, cfg Config, when string) {
	t.Helper()
	local := addrs("169.254.25.10")[0]
	l := f.links[DefaultLink]
	if !slices.Contains(f.spares, local) && !slices.Contains(l.Addrs, local) {
		t.Errorf("%s: the local address is not local:\n%s", when, f)
	}
	nat := natRules(f)
	for _, chain := range []string{"PREROUTING", "OUTPUT"} {
		for _, p := range protocols() {
			if !strings.Contains(nat, "-A "+chain+" -d 169.254.25.10/32 -p "+p+" ") {
				t.Errorf("%s: no backstop for %s in %s:\n%s", when, p, chain, f)
			}
		}
	}
	cluster := addrs("10.96.0.10")[0]
	if slices.Contains(f.spares, cluster) && !strings.Contains(f.String(), "nat -A POSTROUTING -s 169.254.25.10/32 ! -o lo -m conntrack --ctorigdst 10.96.0.10 ") {
		t.Errorf("%s: the ClusterIP is local, and nothing masquerades questions of the host:\n%s", when, f)
	}
	// What steers without looking at socket or owner must end with the lease.
	for line := range strings.SplitSeq(f.String(), "\n") {
		if strings.Contains(line, "raw -A PREROUTING") && !strings.Contains(line, "-m socket") {
			t.Errorf("%s: steers to a dead cache: %s", when, line)
		}
		if strings.Contains(line, "raw -A OUTPUT -d") && strings.Contains(line, "--dport 53") &&
			!strings.Contains(line, "--match-set") && !strings.Contains(line, "--mark") {
			t.Errorf("%s: steers the host to a dead cache: %s", when, line)
		}
	}
}
