package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inside carries the options into the namespace; its presence says we are there.
const inside = "NODEDNS_BENCH"

func inNamespace() bool { return os.Getenv(inside) != "" }

// reexec runs this program again in a network and PID namespace of its own, so
// that port 53 is free, nothing leaves the machine, and nothing stays behind:
// the kernel ends every process of the namespace with its first one.
func reexec(ctx context.Context, o options) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self())
	cmd.Env = append(os.Environ(), inside+"="+string(text))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("measuring in a network namespace (this needs root): %w", err)
	}
	return nil
}

// enter brings the loopback up, mounts a /proc of the new PID namespace and
// reads the options back.
func enter(o *options) error {
	if err := json.Unmarshal([]byte(os.Getenv(inside)), o); err != nil {
		return fmt.Errorf("reading options: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
