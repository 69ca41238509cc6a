// Command nodeinit is the first process of a User-Mode Linux node: it makes a machine of a bare kernel whose root is the
// host's, read-only, and then serves the agent. The kernel hands it BED_NODE, the host's path of the node's folder.
//
// As process 1 it does nothing but reap orphans; the work is done by a child of its own program, since the Go runtime
// cannot both reap everything and wait for its own children.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() == 1 {
		reap()
	}
	err := serve(os.Getenv("BED_NODE"))
	fmt.Fprintln(os.Stderr, "node init:", err)
	os.Exit(1)
}

// reap starts the working child and collects every process that ends, forever: if process 1 ended, the kernel would
// panic and take the message with it.
func reap() {
	child := exec.Command(os.Args[0]) // not /proc/self/exe: the host's /proc shows until ours is mounted
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "node init: starting the agent:", err)
	}
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err == unix.ECHILD {
			time.Sleep(time.Second)
		}
	}
}
