package node

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

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
