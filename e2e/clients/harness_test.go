// Package clients_test lets real clients ask the real cache: dig, kdig, drill, programs linked with glibc and with musl,
// and Go's own resolver. What a server may say is in RFCs; what clients make of it is not.
//
// The test program runs itself again as the first process of its own network, mount and process namespaces. So the
// cache has port 53 and the clients have a resolv.conf that names it, and all of it ends with that process.
package clients_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/bedtest"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

// inside marks the process in the namespaces.
const inside = "NODEDNS_CLIENTS_INSIDE"

// server is where the cache listens; resolv.conf can name no port.
const server = "127.0.0.1"

// corefile has the features on the way of an answer; nothing in it is about one client.
const corefile = `. {
	bind 127.0.0.1
	errors
	cache 3600
	forward . 127.0.0.1:5300
}
`

// asked counts what reached the upstream. It is set before any test runs.
var asked *counts

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if preflight() != nil {
		return m.Run() // where each test says why it cannot run
	}
	if os.Getenv(inside) == "" {
		return again()
	}
	stop, err := setUp()
	defer stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "setting up:", err)
		return 1
	}
	return m.Run()
}

func preflight() error { return host.Preflight(host.Needs{Root: true}) }

// again runs this program in namespaces and returns its exit code.
func again() int {
	runtime.LockOSThread() // the kernel's parent-death signal follows the thread
	cmd := exec.CommandContext(context.Background(), os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() >= 0 {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "running in namespaces:", err)
		return 1
	}
	return 0
}

// setUp makes the machine that the clients see and starts the cache.
func setUp() (stop func(), err error) {
	dir, err := os.MkdirTemp("", "nodedns-clients-")
	if err != nil {
		return func() {}, err
	}
	stop = func() { os.RemoveAll(dir) }
	if err := enter(dir); err != nil {
		return stop, err
	}
	up, counted, err := startUpstream(netip.MustParseAddrPort("127.0.0.1:5300"))
	if err != nil {
		return stop, fmt.Errorf("starting the upstream: %w", err)
	}
	asked = counted
	process, err := startCache(dir)
	return func() {
		process.Stop(5 * time.Second)
		up()
		os.RemoveAll(dir)
	}, err
}

func enter(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	for file, text := range map[string]string{
		"/etc/resolv.conf": "nameserver " + server + "\noptions timeout:3 attempts:2\n",
		// No service beside DNS, which would ask whom it likes.
		"/etc/nsswitch.conf": "hosts: dns\n",
	} {
		ours := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(ours, []byte(text), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(ours, file, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting over %s: %w", file, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking for the loopback: %w", err)
	}
	// The C library asks for the addresses of a family only where the machine has one beside the loopback's own
	// (AI_ADDRCONFIG).
	own := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, 9, 9), Mask: net.CIDRMask(32, 32)}}
	if err := netlink.AddrAdd(lo, own); err != nil {
		return fmt.Errorf("adding an address: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

func startCache(dir string) (*host.Process, error) {
	bin, err := parts.Build(context.Background(), console.New(os.Stderr), []parts.Part{parts.Product()[0]})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "Corefile")
	if err := os.WriteFile(file, []byte(corefile), 0o644); err != nil {
		return nil, err
	}
	here, err := host.ThisNamespace()
	if err != nil {
		return nil, err
	}
	log := filepath.Join(dir, "cache.log")
	p, err := host.Start(host.Command{
		Name: "nodedns-cache", Path: filepath.Join(bin, "nodedns-cache"), Log: log, Namespace: here,
		Args: []string{"-conf", file, "-setupinterface=false", "-setupiptables=false", "-localip", server, "-metrics-listen-address", ""},
	})
	if err != nil {
		return nil, err
	}
	ready := func(context.Context) error {
		if text := host.Tail(log, 100); !strings.Contains(text, "msg=ready") {
			return fmt.Errorf("not ready: %s", text)
		}
		return nil
	}
	return p, host.Until(context.Background(), "the cache", 20*time.Second, ready, p)
}

// need skips a test outside the namespaces, and one whose programs are missing; under REQUIRE_KERNEL=1 it fails.
func need(t *testing.T, programs ...string) {
	t.Helper()
	bedtest.Require(t, preflight())
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			bedtest.Require(t, fmt.Errorf("%w; the tier \"clients\" installs what is missing", err))
		}
	}
}

// said runs a client and returns what it says, with runs of blanks as one. How it ends is not looked at: what a reply
// makes of its exit code differs from client to client.
func said(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatalf("%s: %v", name, err)
	}
	if ctx.Err() != nil {
		t.Errorf("%s has not ended by itself", name)
	}
	var text strings.Builder
	for line := range strings.Lines(string(out)) {
		text.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return text.String()
}
