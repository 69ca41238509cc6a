package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
