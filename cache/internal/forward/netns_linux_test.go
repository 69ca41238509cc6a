package forward

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// inNamespace runs the test again in a process of its own in a fresh network namespace,
// and returns true there and false here, when all is done.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const marker = "FORWARD_TEST_NAMESPACE"
	if os.Getenv(marker) == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), marker+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		t.Logf("in the namespace:\n%s", out)
	case cmd.ProcessState == nil: // not even started
		if os.Getenv("REQUIRE_KERNEL") == "1" {
			t.Fatalf("no network namespace: %v", err)
		}
		t.Skipf("no network namespace: %v", err)
	default:
		t.Fatalf("in the namespace: %v\n%s", err, out)
	}
	return false
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
}

// U05: a link-local nameserver is asked through the link of its zone, over UDP and TCP; a
// zone on a global address is left aside.
func TestU05_LinkLocalWithZone(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ip(t, "link", "set", "lo", "up")
	ip(t, "link", "add", "left", "type", "veth", "peer", "name", "right")
	for _, link := range []string{"left", "right"} {
		ip(t, "link", "set", link, "up")
	}
	ip(t, "addr", "add", "fe80::53/64", "dev", "left", "nodad")
	ip(t, "addr", "add", "2001:db8::53/128", "dev", "lo", "nodad")

	// Until the kernel is done with the new links it drops what is sent over them.
	eventually(t, "addresses to be ready", func() bool {
		out, err := exec.Command("ip", "-6", "addr", "show", "tentative").CombinedOutput()
		return err == nil && len(out) == 0
	})

	for _, tc := range []struct{ listen, line string }{
		{"[fe80::53%left]:53", "nameserver fe80::53%left\n"},
		{"[2001:db8::53]:53", "nameserver 2001:db8::53%left\n"},
	} {
		// Over UDP a truncated reply, so that TCP is taken as well.
		up := newFake(t, func(q *asked) {
			m := q.reply(3)
			m.Truncated = q.tcp == nil
			q.send(m)
		}, noTCP, noUDP)
		udp, err := net.ListenPacket("udp6", tc.listen)
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := net.Listen("tcp6", tc.listen)
		if err != nil {
			t.Fatal(err)
		}
		up.udp, up.listener = udp, tcp
		up.addr = netip.MustParseAddrPort(udp.LocalAddr().String())
		up.wg.Go(func() { up.serveUDP(udp) })
		up.wg.Go(func() { up.serveTCP(tcp) })

		path := filepath.Join(t.TempDir(), "resolv.conf")
		write(t, path, tc.line)
		f := start(t, Config{ResolvConf: []string{path}})
		f.mustAsk(t, "a.test", 3, time.Second)
		up.stop()
	}
}
