package host

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Needs says what a run needs of the machine. Zero fields are not checked.
type Needs struct {
	// Root is set where namespaces are made.
	Root bool
	// UML is set where User-Mode Linux nodes are started.
	UML bool
	// Memory is what must be available, in MiB.
	Memory int
	// Disk is what must be free in Dir, in MiB.
	Disk int
	Dir  string
}

// Preflight checks the machine and returns every problem with what to do about it, joined.
func Preflight(n Needs) error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if n.Root && os.Geteuid() != 0 {
		add("not root: network namespaces, links and nodes need it; run it as root (sudo make …)")
	}
	if n.UML {
		if runtime.GOARCH != "amd64" {
			add("User-Mode Linux exists for amd64 only, this machine is %s", runtime.GOARCH)
		}
		if err := openTun(); err != nil {
			add("/dev/net/tun does not open (%w): the nodes' links are taps; load the module tun, or allow the device in this container", err)
		}
		if b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && strings.TrimSpace(string(b)) == "3" {
			add("kernel.yama.ptrace_scope is 3: User-Mode Linux runs its processes by ptrace; set it to 1 (needs a reboot)")
		}
	}
	if b, err := os.ReadFile("/etc/debian_version"); err != nil {
		add("no /etc/debian_version: the test bed installs and uses packages of Debian 12 or later")
	} else if v := strings.TrimSpace(string(b)); strings.HasPrefix(v, "11") || strings.HasPrefix(v, "10") {
		add("Debian %s is too old: Debian 12 or later is needed", v)
	}
	if mib := availableMiB(); n.Memory > 0 && mib > 0 && mib < n.Memory {
		add("%d MiB of memory available, %d needed: stop other programs or use a larger machine", mib, n.Memory)
	}
	if n.Disk > 0 {
		var s unix.Statfs_t
		if err := unix.Statfs(n.Dir, &s); err != nil {
			add("looking at the disk of %s: %w", n.Dir, err)
		} else if mib := int(s.Bavail * uint64(s.Bsize) >> 20); mib < n.Disk {
			add("%d MiB free in %s, %d needed", mib, n.Dir, n.Disk)
		}
	}
	return errors.Join(problems...)
}

func openTun() error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func availableMiB() int {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		var kib int
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil {
			return kib >> 10
		}
	}
	return 0
}
