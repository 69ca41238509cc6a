package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/nodedns/nodedns/e2e/house"
)

// nodeNamespace gives the test a network namespace of its own, as a stand-in for a node: the calling goroutine stays in it,
// and what it starts too. The kernels and proxy modes themselves are the business of the node room's tests.
func nodeNamespace(t *testing.T) {
	t.Helper()
	var missing string
	if os.Geteuid() != 0 {
		missing = "needs root for a network namespace"
	} else if _, err := exec.LookPath("iptables-save"); err != nil {
		missing = "needs iptables"
	}
	if missing != "" {
		if os.Getenv("REQUIRE_KERNEL") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	runtime.LockOSThread() // for good: the thread ends with the test's goroutine, and the namespace with its last process
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
}

const nodeCorefile = `.:53 {
 errors
 bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
 health __PILLAR__LOCAL__DNS__:8080
 ready __PILLAR__LOCAL__DNS__:8181
 hosts {
  192.0.2.7 a.test
 }
 forward . __PILLAR__CLUSTER__DNS__
}
`

// launchOnNode starts the cache as it runs on a node.
func launchOnNode(t *testing.T, corefile string, args ...string) *cacheProcess {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "Corefile"), corefile)
	env := []string{"KUBE_DNS_SERVICE_HOST=10.96.0.10", "KUBE_DNS_UPSTREAM_SERVICE_HOST=10.96.0.11"}
	return launch(t, dir, "53", env, append([]string{"-setupinterface=true", "-setupiptables=true", "-localip", "169.254.25.10", "-mode", "iptables", "-conf", "Corefile"}, args...)...)
}

// rules lists the rules in force that are ours.
func rules(t *testing.T) string {
	t.Helper()
	var out []string
	for _, cmd := range []string{"iptables-save", "iptables-legacy-save", "iptables-nft-save"} {
		b, err := exec.Command(cmd).Output()
		if err != nil {
			continue // not installed
		}
		for l := range strings.Lines(string(b)) {
			if strings.Contains(l, "nodedns") {
				out = append(out, l)
			}
		}
	}
	return strings.Join(out, "")
}

// TestNodeLifecycle: from nothing to in service, a look at /ready, SIGTERM, and what stays; then cleanup, after which
// nothing does.
func TestNodeLifecycle(t *testing.T) {
	nodeNamespace(t)
	c := launchOnNode(t, nodeCorefile)
	c.waitReady()
	c.eventually("in service", func() bool { return strings.Contains(house.Page("169.254.25.10:8181", "/ready"), "lease: on") })
	ready := house.Page("169.254.25.10:8080", "/ready")
	for _, want := range []string{"200 OK", "mode: iptables", "guard: ", "serves: 10.96.0.10:53 169.254.25.10:53"} {
		if !strings.Contains(ready, want) {
			t.Errorf("/ready lacks %q:\n%s", want, ready)
		}
	}
	// The answer of /ready to who needs the backstop to last: not outside IPVS.
	if lasting := house.Page("169.254.25.10:8181", "/ready?need=backstop"); !strings.Contains(lasting, "503 ") || !strings.Contains(lasting, "no lasting backstop with kube-proxy mode iptables") {
		t.Errorf("/ready?need=backstop:\n%s", lasting)
	}
	for _, addr := range []string{"169.254.25.10:53", "10.96.0.10:53"} {
		for _, network := range []string{"udp", "tcp"} {
			if got := ask(t.Context(), addr, network, "a.test"); got != "192.0.2.7" {
				t.Errorf("%s over %s: %s", addr, network, got)
			}
		}
	}
	c.signal(syscall.SIGTERM)
	if code := c.exits(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if r := rules(t); strings.Contains(r, "10.96.0.10/32 -p udp -m udp --dport 53 -m comment --comment \"nodedns: questions") {
		t.Errorf("rules of the ClusterIP are left behind:\n%s", r)
	}
	cmd := exec.Command(os.Args[0], "cleanup")
	cmd.Env = append(os.Environ(), "NODEDNS_TEST_RUN_MAIN=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("cleanup: %v\n%s", err, out)
	}
	if r := rules(t); r != "" {
		t.Errorf("after cleanup:\n%s", r)
	}
}

// TestN14NodePortHeld: another program on the DNS port of an own address ends the start. The message says who, also when the
// port is shared by SO_REUSEPORT and binding would have worked; no rule is left behind.
func TestN14NodePortHeld(t *testing.T) {
	nodeNamespace(t)
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, 15 /* SO_REUSEPORT */, 1) })
	}}
	pc, err := lc.ListenPacket(t.Context(), "udp4", "0.0.0.0:53")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	c := launchOnNode(t, nodeCorefile)
	if code := c.exits(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"port 53", "0.0.0.0:53", "udp", "uid 0", "inode"} {
		if !strings.Contains(strings.ToLower(c.said()), want) {
			t.Errorf("the message lacks %q: %s", want, c.said())
		}
	}
	if r := rules(t); r != "" {
		t.Errorf("rules are left behind:\n%s", r)
	}
}

// TestSteeredAddressNotServed: a Corefile that does not bind an address to which the rules would lead questions ends the
// start before anything on the node is touched.
func TestSteeredAddressNotServed(t *testing.T) {
	nodeNamespace(t)
	c := launchOnNode(t, strings.Replace(nodeCorefile, " __PILLAR__DNS__SERVER__", "", 1))
	if code := c.exits(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(c.said(), "no server block of the Corefile binds 10.96.0.10:53") {
		t.Errorf("message: %s", c.said())
	}
	untouched(t)
}

// TestPIDFileCannotBeWritten: that too is found out before the node is touched.
func TestPIDFileCannotBeWritten(t *testing.T) {
	nodeNamespace(t)
	c := launchOnNode(t, nodeCorefile, "-pidfile", filepath.Join(t.TempDir(), "missing", "pid"))
	if code := c.exits(); code != 1 || !strings.Contains(c.said(), "-pidfile") {
		t.Errorf("exit code %d: %s", code, c.said())
	}
	untouched(t)
}

// untouched fails the test if anything of the cache is on the node.
func untouched(t *testing.T) {
	t.Helper()
	if r := rules(t); r != "" {
		t.Errorf("rules are left behind:\n%s", r)
	}
	for _, args := range [][]string{{"addr"}, {"route", "show", "table", "local"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil || strings.Contains(string(out), "169.254.25.10") || strings.Contains(string(out), "10.96.0.10") {
			t.Errorf("an address is left behind: %v\n%s", err, out)
		}
	}
}

// TestOneOwner: a second cache touches nothing while the first is there, and takes over when it ends.
func TestOneOwner(t *testing.T) {
	nodeNamespace(t)
	first := launchOnNode(t, nodeCorefile)
	first.waitReady()
	second := launchOnNode(t, strings.Replace(nodeCorefile, "192.0.2.7", "192.0.2.8", 1))
	second.eventually("the second one waits", func() bool { return strings.Contains(second.said(), "waiting for another cache") })
	if got := ask(t.Context(), "169.254.25.10:53", "udp", "a.test"); got != "192.0.2.7" {
		t.Errorf("while both run: %s", got)
	}
	first.signal(syscall.SIGKILL)
	second.waitReady()
	if got := ask(t.Context(), "169.254.25.10:53", "udp", "a.test"); got != "192.0.2.8" {
		t.Errorf("after the first was killed: %s", got)
	}
}

// TestSIGTERMWhileStarting: at whatever moment of the start the signal comes, the process ends cleanly and leaves no rule that
// steers anything.
func TestSIGTERMWhileStarting(t *testing.T) {
	nodeNamespace(t)
	for _, after := range []time.Duration{0, 10 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond, 160 * time.Millisecond} {
		c := launchOnNode(t, nodeCorefile)
		time.Sleep(after)
		c.signal(syscall.SIGTERM)
		code := c.exits()
		// Before the handler is in place the signal itself ends the process.
		if status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); code != 0 && (!ok || !status.Signaled()) {
			t.Errorf("after %v: exit code %d:\n%s", after, code, c.said())
		}
		if got := ask(t.Context(), "10.96.0.10:53", "udp", "a.test"); got == "192.0.2.7" {
			t.Errorf("after %v: something answers still", after)
		}
	}
}
