package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// lockRetry is how often a waiting process tries the lock; the kernel frees it with the owner's last breath.
const lockRetry = 50 * time.Millisecond

// lockReport is how often a waiting process says what it waits for.
const lockReport = 30 * time.Second

// lockName is an abstract unix socket: it lives in the network namespace, as the rules and addresses it protects do,
// needs no file, and ends with the process whatever ends that.
func lockName(link string) string { return "@nodedns-cache/" + link }

// Lock waits until this process is the node's one owner, or until ctx ends. The lock ends with the process, or with
// Unlock.
func (n *Node) Lock(ctx context.Context) error {
	l, err := lock(ctx, n.cfg.Link, func(holder string) {
		n.log.Warn("waiting for another cache on this node to end", "holder", holder)
	})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lock = l
	return nil
}

// Unlock gives the node up to the next owner. A process that ends need not call it.
func (n *Node) Unlock() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lock == nil {
		return nil
	}
	err := n.lock.Close()
	n.lock = nil
	return err
}

// lock takes the lock of link, waiting until ctx ends. waiting is called now and then with the holder while it waits.
func lock(ctx context.Context, link string, waiting func(holder string)) (net.Listener, error) {
	name := lockName(link)
	var reported time.Time
	var holder string
	tick := time.NewTicker(lockRetry)
	defer tick.Stop()
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, "unix", name)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("taking the lock %s: %w", name, err)
		}
		// Not each time: nobody accepts the connection that tells.
		if time.Since(reported) >= lockReport {
			reported = time.Now()
			holder = lockHolder(ctx, name)
			waiting(holder)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the lock %s, held by %s: %w", name, holder, ctx.Err())
		case <-tick.C:
		}
	}
}

// lockHolder describes the process that listens on name.
func lockHolder(ctx context.Context, name string) string {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", name)
	if err != nil {
		return "a process that does not say"
	}
	defer func() { _ = c.Close() }()
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return "a process that does not say"
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return "a process that does not say"
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return "a process that does not say"
	}
	if cred.Pid == 0 {
		return fmt.Sprintf("a process of uid %d in another pid namespace", cred.Uid)
	}
	return fmt.Sprintf("pid %d of uid %d%s", cred.Pid, cred.Uid, commandOf(int(cred.Pid)))
}
