package node

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

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
	stageVar = "NODE_TEST_STAGE" // the folder with the programs, where they have been built already
)

// place is where a kernel test runs.
type place struct {
	name    string
	flavour Flavour
	kind    string // of link to make: a host's kernel may have no dummy
	uml     bool
	// Of tests that run the cache's program under load:
	mode  Mode
	guard Level // to be asked for, and to be had
	lane  int   // which part of the test runs there
}

// places are those of tests that look at rules and links alone.
func places() []place {
	if os.Getenv(umlVar) != "" {
		return []place{{name: "uml", flavour: Legacy, kind: kindOurs, uml: true}}
	}
	return []place{
		{name: "nft", flavour: NFT, kind: "ifb"},
		{name: "legacy", flavour: Legacy, kind: "ifb"},
	}
}

// settings are those of tests that run the cache's program under load: kube-proxy's modes, and the iptables flavour beside
// them; only those with the names, or all. lanes says in how many parts a test is cut, which run beside each other.
func settings(lanes int, names ...string) []place {
	base := []place{
		{name: "nftables", flavour: NFT, kind: "ifb", mode: NFTables, guard: LevelOwner},
		{name: "iptables-nft", flavour: NFT, kind: "ifb", mode: IPTables, guard: LevelOwner},
		{name: "iptables-legacy", flavour: Legacy, kind: "ifb", mode: IPTables, guard: LevelSocket},
	}
	if os.Getenv(umlVar) != "" {
		base = []place{
			{name: "ipvs", flavour: Legacy, kind: kindOurs, uml: true, mode: IPVS, guard: LevelSocket},
			{name: "iptables", flavour: Legacy, kind: kindOurs, uml: true, mode: IPTables, guard: LevelSocket},
		}
	}
	var out []place
	for _, p := range base {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		for p.lane = range lanes {
			q := p
			q.name = fmt.Sprintf("%s-%d", p.name, p.lane)
			out = append(out, q)
		}
	}
	return out
}

// setting is the place's name without its lane.
func (p place) setting() string {
	name, _, _ := strings.Cut(p.name, "-"+strconv.Itoa(p.lane))
	return name
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
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if os.Getenv(placeVar) == "" && os.Getenv(umlVar) == "" {
			_ = os.RemoveAll(stageDir())
		}
		os.Exit(code)
	}))
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
	inPlaces(t, places(), true, body)
}

// inKernelAlone is inKernel for bodies that measure time: while they run, no other does.
func inKernelAlone(t *testing.T, body func(t *testing.T, p place)) {
	t.Helper()
	inPlaces(t, places(), false, body)
}

// inKernelWithCache is inKernel for bodies that run the cache's program and count lost questions.
func inKernelWithCache(t *testing.T, all []place, body func(t *testing.T, p place)) {
	t.Helper()
	inPlaces(t, all, true, body)
}

func inPlaces(t *testing.T, all []place, beside bool, body func(t *testing.T, p place)) {
	t.Helper()
	for _, p := range all {
		if os.Getenv(placeVar) == p.name {
			body(t, p)
			return
		}
	}
	if beside {
		t.Parallel()
	}
	needRoot(t)
	for _, p := range all {
		t.Run(p.name, func(t *testing.T) {
			if beside {
				t.Parallel()
			}
			again(t, p)
		})
	}
}

// again runs the test that called once more, alone and in a new namespace.
func again(t *testing.T, p place) {
	t.Helper()
	top, _, _ := strings.Cut(t.Name(), "/")
	// NODE_TEST_SUB picks one of its subtests, for work on that.
	args := []string{"-test.run=^" + top + "$" + os.Getenv("NODE_TEST_SUB"), "-test.v", "-test.timeout=14m"}
	if *update {
		args = append(args, "-update")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), placeVar+"="+p.name)
	if p.mode != "" && os.Getenv(stageVar) == "" {
		cmd.Env = append(cmd.Env, stageVar+"="+staged(t))
	}
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
