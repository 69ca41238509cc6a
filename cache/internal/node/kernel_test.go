package node

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/uml"
)

// The kernel tests run in a network namespace of their own, on the host's kernel with either iptables flavour, and once
// more inside User-Mode Linux, which has what the host's kernel may lack: dummy links and IPVS. The test program starts
// itself again in each place; these variables say where it is.
const (
	placeVar = "NODE_TEST_PLACE" // set inside a namespace: the name of the place
	umlVar   = "NODE_TEST_UML"   // set inside User-Mode Linux
	cacheVar = "NODE_TEST_CACHE" // the cache's program, where it has been built already
)

// place is where a kernel test runs.
type place struct {
	name    string
	flavour Flavour
	kind    string // of link to make: a host's kernel may have no dummy
	uml     bool
}

func places() []place {
	if os.Getenv(umlVar) != "" {
		return []place{{name: "uml", flavour: Legacy, kind: kindOurs, uml: true}}
	}
	return []place{
		{name: "nft", flavour: NFT, kind: "ifb"},
		{name: "legacy", flavour: Legacy, kind: "ifb"},
	}
}

func TestMain(m *testing.M) {
	uml.Init()
	actRole()
	if os.Getenv(placeVar) != "" {
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "setting up the namespace:", err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}

// furnish gives the namespace its own /run, and so its own xtables lock, and a loopback link.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("run", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	// A /sys of this network namespace.
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// inKernel runs body in each place. The test it is called from does nothing else. Tests and places run beside each other:
// none sees another's network.
func inKernel(t *testing.T, body func(t *testing.T, p place)) {
	t.Helper()
	inKernelWith(t, body, true, func() []string { return nil })
}

// inKernelWithCache is inKernel for bodies that run the cache's program and count lost questions: one at a time, or they
// would count each other's load.
func inKernelWithCache(t *testing.T, body func(t *testing.T, p place)) {
	t.Helper()
	inKernelWith(t, body, false, func() []string {
		if os.Getenv(cacheVar) != "" {
			return nil
		}
		return []string{cacheVar + "=" + buildCache(t, t.TempDir())}
	})
}

func inKernelWith(t *testing.T, body func(t *testing.T, p place), beside bool, env func() []string) {
	t.Helper()
	for _, p := range places() {
		if os.Getenv(placeVar) == p.name {
			body(t, p)
			return
		}
	}
	if beside {
		t.Parallel()
	}
	needRoot(t)
	with := env()
	for _, p := range places() {
		t.Run(p.name, func(t *testing.T) {
			if beside {
				t.Parallel()
			}
			again(t, p, with)
		})
	}
}

// buildCache builds the cache's program into a folder.
func buildCache(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "nodedns-cache")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../..").CombinedOutput(); err != nil {
		t.Fatalf("building the cache: %v\n%s", err, out)
	}
	return path
}

// again runs the test that called once more, alone and in a new namespace.
func again(t *testing.T, p place, env []string) {
	t.Helper()
	top, _, _ := strings.Cut(t.Name(), "/")
	// NODE_TEST_SUB picks one of its subtests, for work on that.
	args := []string{"-test.run=^" + top + "$" + os.Getenv("NODE_TEST_SUB"), "-test.v", "-test.timeout=5m"}
	if *update {
		args = append(args, "-update")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), placeVar+"="+p.name), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("in a namespace of its own: %v\n%s", err, out)
		return
	}
	if bytes.Contains(out, []byte("--- SKIP")) {
		t.Skipf("%s", out)
	}
	t.Logf("%s", out)
}

// needRoot skips where namespaces cannot be made; under REQUIRE_KERNEL=1 that is a failure.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		skip(t, "needs root for a network namespace")
	}
	if _, err := exec.LookPath("iptables-nft"); err != nil {
		skip(t, "needs the package iptables")
	}
}

func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("REQUIRE_KERNEL") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// TestUML runs the kernel tests once more, inside User-Mode Linux.
func TestUML(t *testing.T) {
	if os.Getenv(umlVar) != "" || os.Getenv(placeVar) != "" {
		t.Skip("this is the inside of it")
	}
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	needRoot(t)
	if err := uml.Missing(); err != nil {
		skip(t, err.Error())
	}
	self, dir := visible(t)
	cache := buildCache(t, filepath.Dir(self))
	// Those for which another, older kernel, dummy links or IPVS make a difference.
	run := "^Test(Kernel(Contract|Golden|OwnerTable|Failover|Surroundings|Capabilities)|N01|N11|N12)"
	if only := os.Getenv("NODE_TEST_ONLY"); only != "" {
		run = only
	}
	args := []string{self, "-test.run=" + run, "-test.v", "-test.timeout=11m"}
	if *update {
		args = append(args, "-update")
	}
	var out bytes.Buffer
	code, err := uml.Run(t.Context(), uml.Config{
		Command: args, Dir: dir, Env: []string{umlVar + "=1", cacheVar + "=" + cache, "NODE_TEST_SUB=" + os.Getenv("NODE_TEST_SUB")}, Output: &out, Timeout: 12 * time.Minute, Memory: 1024,
		Shared: []string{dir},
	})
	if err != nil || code != 0 {
		t.Fatalf("inside User-Mode Linux: exit code %d, %v\n%s", code, err, out.String())
	}
	t.Logf("%s", out.String())
}

// visible gives this test program at a path that User-Mode Linux sees (it covers /tmp, where go test puts it), and the
// package's folder.
func visible(t *testing.T) (self, dir string) {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("/var/tmp", "node-test-") //nolint:usetesting // not in /tmp, see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	self = filepath.Join(folder, "node.test")
	if err := os.WriteFile(self, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return self, dir
}

// host is the kernel of the place.
func (p place) host() host { return host{kernelLinks: kernelLinks{kind: p.kind}} }

// node makes a Node on the kernel of the place.
func (p place) node(t *testing.T, cfg Config) *Node {
	t.Helper()
	if cfg.Flavour == "" {
		cfg.Flavour = p.flavour
	}
	return makeNode(t, cfg, p.host(), p.kind)
}

// makeNode makes a Node on k, with the usual addresses where cfg says nothing.
func makeNode(t *testing.T, cfg Config, k kernel, kind string) *Node {
	t.Helper()
	if cfg.Local == nil {
		cfg.Local = addrs("169.254.25.10")
	}
	if cfg.ClusterIP == nil {
		cfg.ClusterIP = addrs("10.96.0.10")
	}
	if cfg.Mode == "" {
		cfg.Mode = IPVS
	}
	if cfg.HealthPort == 0 {
		cfg.HealthPort = 8080
	}
	n, err := newNode(cfg, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), nil, k, kind)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// sh runs a shell script and gives what it prints; it fails the test if the script fails.
func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}
