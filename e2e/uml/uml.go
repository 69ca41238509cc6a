// Package uml runs a program as root of a User-Mode Linux kernel: a real kernel of its own, with modules that the
// host's may lack (dummy, IPVS, ipset), in about a second, without anything being left on the host.
//
// The program sees the host's files read-only, fresh /proc, /sys, /dev, /run and /tmp (the host's /tmp is hidden, so
// the program and what it needs must be elsewhere, or in a shared folder), and a network with a loopback link only.
// The first process of the kernel is the calling program itself, which therefore must call Init first thing:
//
//	func TestMain(m *testing.M) {
//		uml.Init() // returns at once, except as the first process of a kernel that Run booted
//		os.Exit(m.Run())
//	}
//
//	func TestInKernel(t *testing.T) {
//		code, err := uml.Run(t.Context(), uml.Config{Command: []string{self, "-test.run", "…"}, Output: os.Stdout})
//	}
//
// It knows nothing of clusters; the test bed boots its nodes itself.
package uml

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Config says what to run and how.
type Config struct {
	// Command is the program with its arguments. The program's path is absolute.
	Command []string
	// Dir is the working folder. Default: the root.
	Dir string
	// Env is added to the few variables the program gets (PATH, HOME, TMPDIR).
	Env []string
	// Output receives what the program prints. Default: nowhere.
	Output io.Writer
	// Modules are loaded before the program starts, with what they depend on. Default: NodeModules.
	Modules []string
	// Shared are folders of the host that the program may write to, seen at their own paths.
	Shared []string
	// Memory of the kernel in MiB. Default: 512.
	Memory int
	// Timeout ends the kernel. Default: 5 minutes.
	Timeout time.Duration
}

// kernelCommand and moduleRoot are where the Debian package user-mode-linux puts things.
const (
	kernelCommand = "linux.uml"
	moduleRoot    = "/usr/lib/uml/modules"
)

// NodeModules are those that a Kubernetes node with kube-proxy in IPVS or iptables mode uses, and those of the cache.
func NodeModules() []string {
	return strings.Fields(`dummy veth bridge br_netfilter
		ip_tables iptable_raw iptable_filter iptable_nat iptable_mangle
		ip6_tables ip6table_raw ip6table_filter ip6table_nat ip6table_mangle
		xt_CT xt_socket xt_set xt_comment xt_conntrack xt_mark xt_nat xt_MASQUERADE xt_tcpudp xt_multiport xt_statistic
		xt_addrtype xt_recent xt_physdev ipt_REJECT ip6t_REJECT nf_conntrack nf_conntrack_netlink
		ip_set ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_bitmap_port ip_set_list_set
		ip_vs ip_vs_rr ip_vs_wrr ip_vs_sh
		inet_diag udp_diag tcp_diag`)
}

// Missing says what of the host's packages Run needs and does not find, nil if all is there.
func Missing() error {
	if _, err := exec.LookPath(kernelCommand); err != nil {
		return fmt.Errorf("no %s: install the package user-mode-linux", kernelCommand)
	}
	if _, err := moduleDir(); err != nil {
		return err
	}
	return missingCompiler()
}

// moduleDir is the folder of the kernel's modules.
func moduleDir() (string, error) {
	dirs, err := filepath.Glob(filepath.Join(moduleRoot, "*", "modules.dep"))
	if err != nil || len(dirs) == 0 {
		return "", fmt.Errorf("no modules in %s: install the package user-mode-linux", moduleRoot)
	}
	slices.Sort(dirs)
	return filepath.Dir(dirs[len(dirs)-1]), nil
}

func (c Config) withDefaults() Config {
	if c.Dir == "" {
		c.Dir = "/"
	}
	if c.Output == nil {
		c.Output = io.Discard
	}
	if c.Modules == nil {
		c.Modules = NodeModules()
	}
	if c.Memory == 0 {
		c.Memory = 512
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Minute
	}
	return c
}

// Validate lists every problem of c, joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if len(c.Command) == 0 {
		errs = append(errs, errors.New("no command"))
	} else if !filepath.IsAbs(c.Command[0]) {
		errs = append(errs, fmt.Errorf("command %q: want an absolute path", c.Command[0]))
	}
	for _, p := range append([]string{c.Dir}, c.Shared...) {
		if st, err := os.Stat(p); err != nil {
			errs = append(errs, err)
		} else if !st.IsDir() || !filepath.IsAbs(p) {
			errs = append(errs, fmt.Errorf("%s: want the absolute path of a folder", p))
		}
	}
	if c.Memory < 64 {
		errs = append(errs, fmt.Errorf("memory of %d MiB: want at least 64", c.Memory))
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout %s is negative", c.Timeout))
	}
	return errors.Join(errs...)
}
