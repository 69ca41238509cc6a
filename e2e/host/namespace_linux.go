package host

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// A Namespace is a network namespace without a name. It lives as long as this Namespace is open or a process is in it,
// and takes its links, rules and sockets with it, so that even a SIGKILL of this process leaves nothing.
//
// One thread stays in it. Children are started from that thread, which is what ties their life to ours: the kernel
// sends the parent-death signal when the thread that started them ends, not when the process does.
type Namespace struct {
	fd   *os.File
	work chan func()
	once sync.Once
	done chan struct{}
}

// NewNamespace makes a network namespace with its loopback up.
func NewNamespace() (*Namespace, error) {
	return newNamespace(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace (root is needed): %w", err)
		}
		return nil
	}, true)
}

// ThisNamespace returns the network namespace that the calling program was started in, to start children there.
func ThisNamespace() (*Namespace, error) {
	return newNamespace(func() error { return nil }, false)
}

func newNamespace(enter func() error, loopback bool) (*Namespace, error) {
	n := &Namespace{work: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go n.thread(enter, loopback, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return n, nil
}

// thread never unlocks its OS thread: the runtime ends a thread whose goroutine returns while locked, so a thread in a
// foreign namespace cannot go back to the pool.
func (n *Namespace) thread(enter func() error, loopback bool, ready chan<- error) {
	defer close(n.done)
	runtime.LockOSThread()
	err := enter()
	if err == nil {
		n.fd, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	}
	if err == nil && loopback {
		err = loopbackUp()
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range n.work {
		f()
	}
	n.fd.Close()
}

// loopbackUp sets the link lo up with the old ioctl, which needs no netlink library here.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket for the loopback: %w", err)
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("setting the loopback up: %w", err)
	}
	return nil
}

// Do runs f on the thread that stays in the namespace and returns its error. f must not block for long: starts of
// children wait for it.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error, 1)
	select {
	case n.work <- func() { result <- f() }:
		return <-result
	case <-n.done:
		return net.ErrClosed
	}
}

// In runs f on a thread of its own inside the namespace; f may block. Sockets that f opens stay in the namespace and
// may be used from anywhere afterwards.
func (n *Namespace) In(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := unix.Setns(int(n.fd.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("entering the network namespace: %w", err)
			return
		}
		result <- f()
	}()
	return <-result
}

// Dial connects from inside the namespace. address must hold a literal IP address: a resolver would run elsewhere.
func (n *Namespace) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.In(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen opens a stream listener inside the namespace.
func (n *Namespace) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	err = n.In(func() error {
		l, err = (&net.ListenConfig{}).Listen(ctx, network, address)
		return err
	})
	return l, err
}

// ListenPacket opens a packet socket inside the namespace.
func (n *Namespace) ListenPacket(ctx context.Context, network, address string) (c net.PacketConn, err error) {
	err = n.In(func() error {
		c, err = (&net.ListenConfig{}).ListenPacket(ctx, network, address)
		return err
	})
	return c, err
}

// Close ends the thread. Children that were started from it get SIGKILL, so stop them first where they should end well.
func (n *Namespace) Close() {
	n.once.Do(func() { close(n.work) })
	<-n.done
}
