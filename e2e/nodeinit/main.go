// Command nodeinit is the first process of a User-Mode Linux node: it makes a machine of a bare kernel whose root is the
// host's, read-only, and then serves the agent. The kernel hands it BED_NODE, the host's path of the node's folder.
//
// As process 1 it does nothing but reap orphans; the work is done by a child of its own program, since the Go runtime
// cannot both reap everything and wait for its own children.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() == 1 {
		fmt.Fprintln(os.Stderr, "node init:", reap())
		// Ending process 1 would be a panic, which hides the message.
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	fmt.Fprintln(os.Stderr, "node init:", serve(os.Getenv("BED_NODE")))
	os.Exit(1)
}

// reap starts the working child and collects every process that ends, until the child does.
func reap() error {
	child := exec.Command(os.Args[0]) // not /proc/self/exe: the host's /proc shows until ours is mounted
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("waiting for children: %w", err)
		}
		if pid == child.Process.Pid {
			return errors.New("the agent has ended")
		}
	}
}
