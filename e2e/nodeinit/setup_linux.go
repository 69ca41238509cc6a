package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/agent"
)

type mount struct {
	source, target, kind, data string
	flags                      uintptr
}

// mounts gives the node its own kernel file systems, writable places in memory, and a disk for /var/lib (overlayfs, on
// which containers live, cannot be stacked on hostfs or tmpfs).
func mounts(n agent.Node) error {
	list := []mount{
		{"proc", "/proc", "proc", "", 0},
		{"sys", "/sys", "sysfs", "", 0},
		{"dev", "/dev", "devtmpfs", "", 0},
		{"devpts", "/dev/pts", "devpts", "ptmxmode=666", 0},
		{"shm", "/dev/shm", "tmpfs", "", 0},
		{"mqueue", "/dev/mqueue", "mqueue", "", 0},
		{"tmp", "/tmp", "tmpfs", "mode=1777", 0},
		{"log", "/var/log", "tmpfs", "", 0},
		{"opt", "/opt", "tmpfs", "", 0},
		{"/dev/ubda", "/var/lib", "ext4", "", unix.MS_NOATIME},
		{"cgroup", "/sys/fs/cgroup", "cgroup2", "", 0},
		// The repository may lie below one of the folders just covered: mount what we need of it where nothing is.
		{"none", agent.Bin, "hostfs", n.Bin, unix.MS_RDONLY},
	}
	for i, folder := range n.Images {
		list = append(list, mount{"none", fmt.Sprintf("%s/%d", agent.Images, i), "hostfs", folder, unix.MS_RDONLY})
	}
	if err := mountAll(list...); err != nil {
		return err
	}
	// kubelet needs mounts to propagate into Pods.
	return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}

// cgroups puts this process, and with it everything it will start, into a group of its own beside the Pods', as systemd
// does with system services. In the root group each of these processes would weigh as much as several Pods.
func cgroups(agent.Node) error {
	const root = "/sys/fs/cgroup"
	if err := os.WriteFile(root+"/cgroup.subtree_control", []byte("+cpu +io +memory +pids"), 0); err != nil {
		return err
	}
	if err := os.Mkdir(root+"/system", 0o755); err != nil {
		return err
	}
	return os.WriteFile(root+"/system/cgroup.procs", []byte("0"), 0)
}

func mountAll(list ...mount) error {
	for _, m := range list {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		// Busy means that it is there already: the kernel mounts /dev by itself.
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mounting %s (%s): %w", m.target, m.kind, err)
		}
	}
	return nil
}

// files puts files of the node's own over those of the host.
func files(n agent.Node) error {
	address, _, _ := strings.Cut(n.Address, "/")
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	for path, text := range map[string]string{
		"/etc/resolv.conf": "nameserver " + n.Nameserver + "\n",
		"/etc/hosts":       "127.0.0.1 localhost\n" + address + " " + n.Name + "\n",
		// kubelet ends without a clock speed, which User-Mode Linux does not tell.
		"/proc/cpuinfo": strings.ReplaceAll(string(cpu), "bogomips", "cpu MHz\t\t: 2400.000\nbogomips"),
	} {
		over := filepath.Join("/run/bed/files", path)
		if err := os.MkdirAll(filepath.Dir(over), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(over, []byte(text), 0o644); err != nil {
			return err
		}
		// A link such as /etc/resolv.conf → /run/systemd/… ends in what is covered now; the bind mount needs a file there.
		target, err := resolveLink(path)
		if err != nil {
			return err
		}
		if err := unix.Mount(over, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("putting %s in place: %w", path, err)
		}
	}
	return nil
}

// resolveLink follows a symbolic link and makes an empty file at its end where there is none.
func resolveLink(path string) (string, error) {
	to, err := os.Readlink(path)
	if err != nil {
		return path, nil //nolint:nilerr // it is not a link, and then there is nothing to follow
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(path), to)
	}
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", err
	}
	return to, os.WriteFile(to, nil, 0o644)
}

// modules loads kernel modules. They are not where modprobe looks, and the root is read-only: a wrapper tells it, for us
// and for programs that call it.
func modules(n agent.Node) error {
	const root = "/run/bed/modules"
	if err := os.MkdirAll(root+"/lib", 0o755); err != nil {
		return err
	}
	if err := os.Symlink("/usr/lib/uml/modules", root+"/lib/modules"); err != nil {
		return err
	}
	if err := os.MkdirAll(agent.Links, 0o755); err != nil {
		return err
	}
	modprobe := agent.Links + "/modprobe"
	if err := os.WriteFile(modprobe, []byte("#!/bin/sh\nexec /sbin/modprobe -d "+root+" \"$@\"\n"), 0o755); err != nil {
		return err
	}
	// The kernel itself gets all its modules here. Asking for what it lacks, as iptables does for each match, would start a
	// program each time, and that is nine tenths of what an iptables command costs in this kernel.
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte("\n"), 0); err != nil {
		return err
	}
	// The stock User-Mode Linux kernel has nf_tables without any address family: only the legacy flavour works.
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		if err := os.Symlink("/usr/sbin/xtables-legacy-multi", filepath.Join(agent.Links, name)); err != nil {
			return err
		}
	}
	if len(n.Modules) == 0 {
		return nil
	}
	// One call for all: starting a program takes some 50 ms here.
	if out, err := exec.Command(modprobe, slices.Concat([]string{"-a"}, n.Modules)...).CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe: %w: %s", err, out)
	}
	return nil
}

func network(n agent.Node) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	link, err := netlink.LinkByName("vec0")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(n.Address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	routes := map[string]string{"0.0.0.0/0": n.Gateway}
	maps.Copy(routes, n.Routes)
	for to, via := range routes {
		_, dst, err := net.ParseCIDR(to)
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(via)}); err != nil {
			return fmt.Errorf("adding the route to %s: %w", to, err)
		}
	}
	return nil
}

func settings(agent.Node) error {
	for name, value := range map[string]string{
		"net/ipv4/ip_forward":                "1",
		"net/ipv4/conf/all/rp_filter":        "0",
		"net/bridge/bridge-nf-call-iptables": "1",
		"net/netfilter/nf_conntrack_max":     "131072",
		"vm/overcommit_memory":               "1",
		"kernel/panic":                       "10",
		"kernel/panic_on_oops":               "1",
	} {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}
