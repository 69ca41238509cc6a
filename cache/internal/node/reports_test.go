package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
)

// The tests below are named after reports from the field: what goes wrong on real nodes.

// set says what a link carries; how to make it is said per case.
func linkAs(p place, name string) string { return "ip link add " + name + " type " + p.kind }

func TestN01_InterfaceWithoutItsAddress(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		add := linkAs(p, DefaultLink)
		for _, c := range []struct {
			name, before string
			conflict     string // what the error names, if it is one
		}{
			{"nothing there", "true", ""},
			{"link up", add + " && ip link set nodelocaldns up", ""},
			{"link down", add, ""},
			{"another address on it", add + " && ip addr add 192.0.2.7/32 dev nodelocaldns", ""},
			{"the address on it", add + " && ip addr add 169.254.25.10/32 dev nodelocaldns", ""},
			{"the address on it, with another prefix", add + " && ip addr add 169.254.25.10/24 dev nodelocaldns", ""},
			{"a bridge of that name", "ip link add nodelocaldns type bridge", `kind "bridge"`},
			{"the address elsewhere", "ip link add br7 type bridge && ip addr add 169.254.25.10/32 dev br7", "169.254.25.10 is on link br7"},
		} {
			t.Run(c.name, func(t *testing.T) {
				sh(t, c.before)
				t.Cleanup(func() {
					_ = exec.Command("ip", "link", "del", DefaultLink).Run()
					_ = exec.Command("ip", "link", "del", "br7").Run()
					_ = p.host().DelSpare(addrs("169.254.25.10")[0])
				})
				before := sh(t, "ip -o addr; ip route show table local")
				n := p.node(t, Config{SkipRules: true})
				err := n.SetUp(t.Context())
				if c.conflict != "" {
					if !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), c.conflict) {
						t.Errorf("got error %v, want one that names the conflict %q", err, c.conflict)
					}
					if diff := cmp.Diff(before, sh(t, "ip -o addr; ip route show table local")); diff != "" {
						t.Errorf("something was touched:\n%s", diff)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				l, err := p.host().Link(DefaultLink)
				if err != nil || !l.Up || !slices.Contains(l.Addrs, addrs("169.254.25.10")[0]) {
					t.Errorf("got link %+v, error %v, want it up with its address", l, err)
				}
				if strings.Contains(c.before, "192.0.2.7") && !slices.Contains(l.Addrs, addrs("192.0.2.7")[0]) {
					t.Error("somebody else's address was removed")
				}
			})
		}
		t.Run("deleted later", func(t *testing.T) {
			n := p.node(t, Config{SkipRules: true})
			if err := n.SetUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			c, err := net.ListenPacket("udp", "169.254.25.10:53")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			running(t, n, answering{})
			for _, fault := range []string{
				"ip addr del 169.254.25.10/32 dev nodelocaldns", "ip link set nodelocaldns down", "ip link del nodelocaldns",
				"ip route del local 169.254.25.10/32 dev lo table local metric 1",
			} {
				sh(t, fault)
				within(t, time.Second, "up, with its address and route, after "+fault, func() bool {
					l, err := p.host().Link(DefaultLink)
					spares, _ := p.host().Spares()
					return err == nil && l.Up && slices.Contains(l.Addrs, addrs("169.254.25.10")[0]) && slices.Contains(spares, addrs("169.254.25.10")[0])
				})
			}
			// The socket that was bound before is the one that still gets questions.
			if got := roundTrip(t, c, "169.254.25.10:53"); got != "ask" {
				t.Errorf("the socket read %q", got)
			}
		})
	})
}

// roundTrip sends a packet to addr and gives what c reads.
func roundTrip(t *testing.T, c net.PacketConn, addr string) string {
	t.Helper()
	out, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := out.Write([]byte("ask")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if err := c.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, _, err := c.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// running runs n until the test ends.
func running(t *testing.T, n *Node, proof Proof) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx, proof) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// started is a node that is set up and armed.
func started(t *testing.T, n *Node) *Node {
	t.Helper()
	if err := n.SetUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Arm(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestN03_LockHeldBySomebodyElse(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		hold := func(t *testing.T, d time.Duration) {
			t.Helper()
			f, err := os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(d, func() { _ = f.Close() })
		}
		cfg := Config{Guard: LevelSocket, LockWait: time.Second, Patience: 20 * time.Second}
		t.Run("at start", func(t *testing.T) {
			hold(t, 2500*time.Millisecond)
			n := started(t, p.node(t, cfg))
			if list := n.problems.list(); len(list) > 0 || n.Level() != LevelSocket {
				t.Errorf("after the lock was free: level %s, problems %q", n.Level(), list)
			}
			if got := testutil.ToFloat64(n.m.lockWaits); p.flavour == Legacy && got == 0 {
				t.Error("no waiting was counted")
			}
		})
		t.Run("longer than the patience at start, then while running", func(t *testing.T) {
			hold(t, 4*time.Second)
			short := cfg
			short.Patience = time.Second
			n := started(t, p.node(t, short))
			running(t, n, answering{})
			within(t, 15*time.Second, "complete", func() bool { return n.Level() == LevelSocket && len(n.problems.list()) == 0 && n.InService() })
		})
		t.Run("at the end", func(t *testing.T) {
			n := started(t, p.node(t, cfg))
			hold(t, 2500*time.Millisecond)
			if err := n.TearDown(t.Context()); err != nil {
				t.Error(err)
			}
			if strings.Contains(dump(t, p.host(), p.flavour), "raw -A") {
				t.Error("raw rules are left")
			}
		})
		if p.flavour != Legacy {
			return // only the legacy flavour has a lock file
		}
		for name, spoil := range map[string]string{
			"directory in its place": "rm -f /run/xtables.lock && mkdir /run/xtables.lock",
			"read-only":              "rm -rf /run/xtables.lock && mount -o remount,ro /run",
		} {
			t.Run(name, func(t *testing.T) {
				sh(t, spoil)
				t.Cleanup(func() { sh(t, "mount -o remount,rw /run; rm -rf /run/xtables.lock") })
				n := p.node(t, Config{Guard: LevelSocket, LockWait: time.Second, Patience: time.Second})
				started(t, n)
				running(t, n, answering{})
				if list := strings.Join(n.problems.list(), "\n"); !strings.Contains(list, "xtables.lock") || !strings.Contains(list, "FileOrCreate") {
					t.Errorf("the problems do not name the lock file and what to do:\n%s", list)
				}
				sh(t, "mount -o remount,rw /run; rm -rf /run/xtables.lock")
				within(t, 15*time.Second, "complete once the file can be had", func() bool { return n.Level() == LevelSocket && len(n.problems.list()) == 0 })
			})
		}
	})
}

func TestN04_RulesPileUp(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		wrap(t, p, `for a in "$@"; do [ "$a" = -C ] && exit 1; done`)
		count := func() int { return strings.Count(dump(t, p.host(), p.flavour), commentPrefix) }
		n := started(t, p.node(t, Config{Guard: LevelSocket}))
		want := count()
		for range 5 {
			if err := n.applyRules(t.Context(), n.sides[0]); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 { // each is a process that was killed without a word
			started(t, p.node(t, Config{Guard: LevelSocket}))
		}
		if got := count(); got != want || want == 0 {
			t.Errorf("%d rules after ten rounds, %d at first", got, want)
		}
	})
}

func TestN04_RulesThatAreNotListed(t *testing.T) {
	f := newFake()
	n := started(t, makeNode(t, Config{Guard: LevelSocket}, f, kindOurs))
	f.mu.Lock()
	f.rules[v4].hide = true
	f.mu.Unlock()
	for range 10 {
		_ = n.applyRules(t.Context(), n.sides[0])
	}
	if list := strings.Join(n.problems.list(), "\n"); !strings.Contains(list, errUnlisted.Error()) {
		t.Errorf("no problem says so:\n%s", list)
	}
	f.mu.Lock()
	for k, lines := range f.rules[v4].chains {
		if most := 2 * len(n.wantedIn(k)); len(lines) > most {
			t.Errorf("%v: %d rules, want no more than one copy each besides the first", k, len(lines))
		}
	}
	f.rules[v4].hide = false
	f.mu.Unlock()
	if err := n.applyRules(t.Context(), n.sides[0]); err != nil || len(n.problems.list()) > 0 {
		t.Errorf("listed again: %v, %q", err, n.problems.list())
	}
	for k, lines := range f.rules[v4].chains {
		if len(lines) != len(n.wantedIn(k)) {
			t.Errorf("%v: %d rules, want %d", k, len(lines), len(n.wantedIn(k)))
		}
	}
}

// wantedIn are the rules that belong into a chain.
func (n *Node) wantedIn(k chainKey) []rule {
	var out []rule
	for _, r := range n.want(n.sides[0], false).rules() {
		if r.table == k.table && r.chain == k.chain {
			out = append(out, r)
		}
	}
	return out
}

// wrap puts wrappers of the iptables commands first into PATH. script runs before the real command.
func wrap(t *testing.T, p place, script string) {
	t.Helper()
	dir := t.TempDir()
	for _, suffix := range []string{"", "-restore"} {
		name := "iptables-" + string(p.flavour) + suffix
		real, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("#!/bin/sh\n%s\nexec %s \"$@\"\n", script, real)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestN06_MissingCommand(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		t.Setenv("PATH", t.TempDir())
		n := started(t, p.node(t, Config{Patience: time.Second}))
		if list := strings.Join(n.problems.list(), "\n"); !strings.Contains(list, "install iptables") {
			t.Errorf("the problems do not say what to do:\n%s", list)
		}
		if len(n.Addrs()) == 0 {
			t.Error("no address to serve")
		}
		// Where the kernel has owner tables, the guard does not need the command.
		if want := map[bool]Level{true: 0, false: LevelOwner}[p.uml]; n.Level() != want {
			t.Errorf("guard level %s, want %s", n.Level(), want)
		}
		n2 := started(t, p.node(t, Config{SkipRules: true}))
		if list := n2.problems.list(); len(list) > 0 {
			t.Errorf("problems with the rules switched off: %q", list)
		}
	})
}

func TestN06_MissingKernelParts(t *testing.T) {
	refused := errors.New("operation not supported")
	for _, c := range []struct {
		name    string
		refuse  []string
		level   Level
		tracked bool
		notrack string
		problem step
	}{
		{"all there", nil, LevelOwner, false, "", ""},
		{"no owner table", []string{"Owner"}, LevelSocket, false, "CT", ""},
		{"no target CT", []string{"Owner", "-j CT"}, LevelSocket, false, "NOTRACK", ""},
		{"no target NOTRACK", []string{"Owner", "-j NOTRACK"}, LevelSocket, false, "CT", ""},
		{"neither target", []string{"Owner", "-j CT", "-j NOTRACK"}, LevelSocket, true, "", stepRaw},
		{"no raw table", []string{"Owner", "table raw"}, LevelSocket, true, "", stepRaw},
		{"no socket match", []string{"Owner", "-m socket"}, LevelLease, false, "CT", ""},
		{"no set match", []string{"Owner", "-m set"}, LevelPlain, false, "CT", ""},
		{"no ipset", []string{"Owner", "EnsureSet"}, LevelPlain, false, "CT", ""},
		{"no dummy", []string{"AddLink"}, LevelOwner, false, "", stepLink},
		{"no filter table", []string{"table filter"}, LevelOwner, false, "", stepFilter},
		{"no nat table", []string{"Owner", "table nat"}, LevelSocket, false, "CT", stepNAT},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			for _, d := range c.refuse {
				f.refuse[d] = refused
			}
			n := started(t, makeNode(t, Config{}, f, kindOurs))
			if n.Level() != c.level {
				t.Errorf("guard level %s, want %s", n.Level(), c.level)
			}
			s := n.sides[0]
			if s.tracked != c.tracked || !strings.Contains(strings.Join(s.notrack, " "), c.notrack) {
				t.Errorf("tracked %t, target %q; want %t, %q", s.tracked, s.notrack, c.tracked, c.notrack)
			}
			if len(n.Addrs()) != 1 {
				t.Errorf("addresses %v, want the one", n.Addrs())
			}
			list := strings.Join(n.problems.list(), "\n")
			if c.problem != "" && !strings.Contains(list, string(c.problem)) || c.problem == "" && list != "" {
				t.Errorf("problems %q, want one with %q", list, c.problem)
			}
			if c.problem != "" {
				if got := testutil.ToFloat64(n.m.problems.WithLabelValues(string(c.problem))); got != 1 {
					t.Errorf("the metric of step %s is %v", c.problem, got)
				}
			}
		})
	}
}

func TestN06_OneMessageForEachProblem(t *testing.T) {
	var out strings.Builder
	f := newFake()
	f.refuse["Tables IPv4"] = exec.ErrNotFound
	f.refuse["Owner"] = errors.New("operation not supported")
	n := makeNode(t, Config{Patience: time.Second}, f, kindOurs)
	n.problems.log = textLog(&out)
	started(t, n)
	for range 20 {
		n.sides[0].retry = time.Time{}
		n.keepRules(t.Context())
	}
	if got := strings.Count(out.String(), "step=\"flavour IPv4\""); got != 1 {
		t.Errorf("%d messages for one problem:\n%s", got, out.String())
	}
	if got := testutil.ToFloat64(n.m.failures.WithLabelValues("flavour")); got != 21 {
		t.Errorf("counted %v failures, want every one", got)
	}
}

// TestN06_NoCapability drops NET_ADMIN for one test process.
func TestN06_NoCapability(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		// Where everybody may execute it.
		dir, err := os.MkdirTemp("/run", "powerless-") //nolint:usetesting // see above; the namespace's /run goes with it
		if err != nil {
			t.Fatal(err)
		}
		sh(t, "chmod 755 "+dir+" && cp "+os.Args[0]+" "+dir+"/test")
		cmd := exec.Command(dir + "/test")
		cmd.Env = append(os.Environ(), roleVar+"=powerless")
		cmd.Dir = "/"
		// User 65534 with no capability at all.
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "NET_ADMIN") {
			t.Errorf("got %v, want an error that names the capability:\n%s", err, out)
		}
	})
}

func TestN07_HostNetworkClients(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		started(t, p.node(t, Config{Mode: IPTables, Guard: LevelSocket}))
		rules := dump(t, p.host(), p.flavour)
		for _, a := range []string{"169.254.25.10/32", "10.96.0.10/32"} {
			for _, proto := range []string{"udp", "tcp"} {
				for _, want := range []string{
					"raw -A PREROUTING -d " + a + " -p " + proto + " -m " + proto + " --dport 53",
					"raw -A OUTPUT -d " + a + " -p " + proto + " -m " + proto + " --dport 53",
					"raw -A OUTPUT -s " + a + " -p " + proto + " -m " + proto + " --sport 53",
					"filter -A INPUT -d " + a + " -p " + proto + " -m " + proto + " --dport 53",
					"filter -A OUTPUT -s " + a + " -p " + proto + " -m " + proto + " --sport 53",
				} {
					if !strings.Contains(rules, want) {
						t.Errorf("no rule %q", want)
					}
				}
			}
			for _, want := range []string{
				"raw -A OUTPUT -d " + a + " -p tcp -m tcp --dport 8080", "raw -A OUTPUT -s " + a + " -p tcp -m tcp --sport 8080",
			} {
				if !strings.Contains(rules, want) {
					t.Errorf("no rule %q", want)
				}
			}
		}
	})
}

func TestN08_AnotherLocalAddress(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		started(t, p.node(t, Config{Guard: LevelSocket, Local: addrs("169.254.20.10")})) // and killed
		n := started(t, p.node(t, Config{Guard: LevelSocket}))
		if got := dump(t, p.host(), p.flavour); strings.Contains(got, "169.254.20.10") {
			t.Errorf("the old address is still there:\n%s", got)
		}
		if !slices.Contains(n.Addrs(), addrs("169.254.25.10")[0]) {
			t.Errorf("addresses %v", n.Addrs())
		}
	})
}

// TestN08_RulesOfTheUpstreamCache has the rules that upstream node-local-dns leaves when it is killed.
func TestN08_RulesOfTheUpstreamCache(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		rule := "iptables-" + string(p.flavour) + " -t raw -%s PREROUTING -d 169.254.25.10/32 -p udp -m udp --dport 53 " +
			"-m comment --comment 'NodeLocal DNS Cache: skip conntrack' -j NOTRACK"
		sh(t, fmt.Sprintf(rule, "A"))
		n := started(t, p.node(t, Config{Guard: LevelSocket}))
		list := strings.Join(n.problems.list(), "\n")
		if !strings.Contains(list, "not ours") || !strings.Contains(list, "skip conntrack") {
			t.Errorf("the rule is not named: %q", list)
		}
		if !strings.Contains(dump(t, p.host(), p.flavour), "skip conntrack") {
			t.Error("somebody else's rule was removed")
		}
		sh(t, fmt.Sprintf(rule, "D"))
		if err := n.applyRules(t.Context(), n.sides[0]); err != nil || len(n.problems.list()) > 0 {
			t.Errorf("after it was removed: %v, %q", err, n.problems.list())
		}
	})
}

func TestN10_AddressLists(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []netip.Addr
		err  string
	}{
		{"169.254.25.10,", addrs("169.254.25.10"), ""},
		{",169.254.25.10", addrs("169.254.25.10"), ""},
		{" 169.254.25.10 , 10.96.0.10 ", addrs("169.254.25.10", "10.96.0.10"), ""},
		{"169.254.25.10,169.254.25.10", addrs("169.254.25.10"), ""},
		{"169.254.25.10,fd00::25:10", addrs("169.254.25.10", "fd00::25:10"), ""},
		{"::ffff:169.254.25.10", addrs("169.254.25.10"), ""},
		{"0.0.0.0", nil, "0.0.0.0 stands for every address"},
		{"::", nil, ":: stands for every address"},
		{"127.0.0.1", nil, "127.0.0.1 is a loopback"},
		{"224.0.0.1", nil, "224.0.0.1 is a multicast"},
		{"169.254.25.10/32", nil, `"169.254.25.10/32"`},
		{"dns.example.test", nil, `"dns.example.test"`},
		{"169.254.25", nil, `"169.254.25"`},
		{"__PILLAR__LOCAL__DNS__", nil, "__PILLAR__LOCAL__DNS__"},
		{"fe80::1", nil, "fd00::25:10"},
		{"fe80::1%eth0", nil, "fd00::25:10"},
		{"fd00::1%eth0", nil, "zone"},
		{"", nil, "no address"},
		{" , ", nil, "no address"},
		{"1.2.3.4,x,y", nil, `"x"`},
	} {
		got, err := ParseAddrs(c.in)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: error %v, want one with %q", c.in, err, c.err)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", c.in, err, diff)
		}
	}
}

func TestN11_ClusterIPOnIPVSLink(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		sh(t, linkAs(p, ipvsLink)+"; ip addr add 10.96.0.10/32 dev kube-ipvs0")
		before := sh(t, "ip -o addr show kube-ipvs0")
		n := started(t, p.node(t, Config{Guard: LevelSocket, Local: addrs("169.254.25.10", "10.96.0.10")}))
		if diff := cmp.Diff([]string{"169.254.25.10"}, texts(n.Addrs())); diff != "" {
			t.Errorf("addresses to bind:\n%s", diff)
		}
		if after := sh(t, "ip -o addr show kube-ipvs0"); after != before {
			t.Errorf("kube-ipvs0 was touched: %s, before %s", after, before)
		}
		if rules := dump(t, p.host(), p.flavour); strings.Contains(rules, "raw -A PREROUTING -d 10.96.0.10/32") {
			t.Error("the ClusterIP is intercepted")
		}
		if err := n.TearDown(t.Context()); err != nil {
			t.Fatal(err)
		}
		// kube-proxy says iptables, and the link is still there: a leftover, with services nobody keeps.
		n = started(t, p.node(t, Config{Guard: LevelSocket, Mode: IPTables}))
		if diff := cmp.Diff([]string{"169.254.25.10"}, texts(n.Addrs())); diff != "" {
			t.Errorf("addresses to bind beside a leftover:\n%s", diff)
		}
		if list := strings.Join(n.problems.list(), "\n"); !strings.Contains(list, "kube-ipvs0") || !strings.Contains(list, "--cleanup") {
			t.Errorf("the leftover is not named: %q", list)
		}
	})
	t.Run("alone", func(t *testing.T) {
		err := Config{Mode: IPVS, Local: addrs("10.96.0.10"), ClusterIP: addrs("10.96.0.10")}.Validate()
		if err == nil || !strings.Contains(err.Error(), "kube-ipvs0") {
			t.Errorf("got %v, want an error that says whose address it is", err)
		}
	})
}

func texts(list []netip.Addr) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}

func TestN12_IPv6(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		dual := Config{Guard: LevelSocket, Local: addrs("169.254.25.10", "fd00::25:10"), ClusterIP: addrs("10.96.0.10", "fd00:96::a")}
		t.Run("alone", func(t *testing.T) {
			n := started(t, p.node(t, Config{Guard: LevelSocket, Local: addrs("fd00::25:10"), ClusterIP: addrs("fd00:96::a")}))
			// Without nodad the address would be tentative and could not be bound for a second.
			c, err := net.ListenPacket("udp", "[fd00::25:10]:53")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if list := n.problems.list(); len(list) > 0 {
				t.Errorf("problems %q", list)
			}
			running(t, n, answering{})
			within(t, 2*time.Second, "in service", n.InService)
			sh(t, "ip link del nodelocaldns")
			if got := roundTrip(t, c, "[fd00::25:10]:53"); got != "ask" {
				t.Errorf("the socket read %q", got)
			}
		})
		t.Run("its command missing", func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"", "-restore"} {
				real, err := exec.LookPath("iptables-" + string(p.flavour) + name)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(real, filepath.Join(dir, "iptables-"+string(p.flavour)+name)); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", dir)
			n := started(t, p.node(t, Config{Guard: LevelSocket}))
			if list := n.problems.list(); len(list) > 0 {
				t.Errorf("IPv6 is not used, and yet: %q", list)
			}
			both := dual
			both.Patience = time.Second
			n = started(t, p.node(t, both))
			if list := strings.Join(n.problems.list(), "\n"); !strings.Contains(list, "IPv6") || strings.Contains(list, "IPv4") {
				t.Errorf("problems %q, want those of IPv6 alone", list)
			}
			if n.sides[0].level != LevelSocket {
				t.Errorf("IPv4 is at level %s", n.sides[0].level)
			}
		})
		t.Run("switched off", func(t *testing.T) {
			sh(t, "ip link del nodelocaldns; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6")
			t.Cleanup(func() {
				sh(t, "echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 0 >/proc/sys/net/ipv6/conf/default/disable_ipv6")
			})
			n := started(t, p.node(t, dual))
			if diff := cmp.Diff([]string{"169.254.25.10"}, texts(n.Addrs())); diff != "" {
				t.Errorf("addresses to bind:\n%s", diff)
			}
			if list := strings.Join(n.problems.list(), "\n"); !strings.Contains(list, "disable_ipv6") {
				t.Errorf("the problems do not say what is wrong: %q", list)
			}
		})
	})
}

func TestN14_PortTaken(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		n := p.node(t, Config{SkipRules: true})
		if err := n.SetUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		sh(t, "ip addr add 192.0.2.9/32 dev lo")
		for _, c := range []struct {
			network, addr string
			holds         bool
		}{
			{"udp", "169.254.25.10:53", true},
			{"tcp", "169.254.25.10:53", true},
			{"udp", "0.0.0.0:53", true},
			{"tcp", "0.0.0.0:53", true},
			{"udp", "[::]:53", true},
			{"tcp", "[::]:53", true},
			{"udp", "192.0.2.9:53", false},
			{"tcp", "192.0.2.9:53", false},
			{"udp", "169.254.25.10:54", false},
		} {
			t.Run(c.network+" "+c.addr, func(t *testing.T) {
				cmd := exec.Command(os.Args[0], c.network, c.addr)
				cmd.Env = append(os.Environ(), roleVar+"=holder")
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: 0}, Pdeathsig: syscall.SIGKILL}
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
				if _, err := out.Read(make([]byte, 8)); err != nil {
					t.Fatal(err)
				}
				// It set SO_REUSEPORT and so do we: both binds work, and one of us gets half the questions.
				got, err := n.Holders(53)
				if err != nil {
					t.Fatal(err)
				}
				if !c.holds {
					if len(got) > 0 {
						t.Errorf("got %v, want none", got)
					}
					return
				}
				if len(got) != 1 {
					t.Fatalf("got %v, want one", got)
				}
				h := got[0]
				if h.Network != c.network || h.Addr != netip.MustParseAddrPort(c.addr) || h.UID != 0 || h.Inode == 0 || h.PID != cmd.Process.Pid || h.Cgroup == "" {
					t.Errorf("got %+v, want %s %s of pid %d with inode and cgroup", h, c.network, c.addr, cmd.Process.Pid)
				}
				for _, want := range []string{c.addr, "uid 0", "inode", "cgroup", "pid"} {
					if !strings.Contains(h.String(), want) {
						t.Errorf("the message %q lacks %q", h, want)
					}
				}
			})
		}
	})
}
