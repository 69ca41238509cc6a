package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockRetry is how often a waiting process tries the lock; the kernel frees it with the owner's last breath.
const lockRetry = 50 * time.Millisecond

// lockReport is how often a waiting process says what it waits for.
const lockReport = 30 * time.Second

// The lock is an abstract unix socket: it lives in the network namespace, as the rules and addresses do that it protects,
// whatever their link is called; it needs no file, and ends with the process whatever ends that. Anybody in the namespace can
// hold such a name. So there are some of it, and one that another user than root or this one holds is passed over. That keeps
// accidents away, not intent: who takes them all keeps a cache from starting, which says who it is.
const lockNames = 16

func lockName(i int) string {
	if i == 0 {
		return "@nodedns-cache"
	}
	return fmt.Sprintf("@nodedns-cache/%d", i)
}

// Lock waits until this process is the node's one owner, or until ctx ends. The lock ends with the process, or with
// Unlock.
func (n *Node) Lock(ctx context.Context) error {
	l, err := lock(ctx, func(holder string) {
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

// lock takes the lock, waiting until ctx ends. waiting is called now and then with the holder while it waits.
func lock(ctx context.Context, waiting func(holder string)) (net.Listener, error) {
	var known claims
	var reported time.Time
	tick := time.NewTicker(lockRetry)
	defer tick.Stop()
	for {
		l, by, err := known.take(ctx)
		if l != nil || err != nil {
			return l, err
		}
		if time.Since(reported) >= lockReport {
			reported = time.Now()
			waiting(by.String())
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the node's lock, held by %s: %w", by, ctx.Err())
		case <-tick.C:
		}
	}
}

// claims is who was seen to hold each name.
type claims [lockNames]claim

// claim is what a name is to whom. The zero one has not been looked at.
type claim struct {
	seen time.Time
	held bool
	pid  int // 0 in another pid namespace
	uid  int // negative if the kernel does not say
}

// take listens on the first name that is free or only kept from us by strangers, unless an owner holds another. Then it
// returns nothing, and the owner.
func (h *claims) take(ctx context.Context) (net.Listener, claim, error) {
	for i := range h {
		l, err := listenOn(ctx, i)
		if err != nil {
			return nil, claim{}, err
		}
		if l == nil {
			if h.look(ctx, i, false); h[i].owner() {
				return nil, h[i], nil
			}
			continue
		}
		by, err := h.rival(ctx, i)
		if err != nil || by.owner() {
			return nil, by, errors.Join(err, l.Close())
		}
		return l, claim{}, nil
	}
	return nil, h[0], nil // all of them
}

// rival returns the owner that holds another name than mine, the zero claim if there is none. Strangers come and go, so it may
// be a name before mine, or after it.
func (h *claims) rival(ctx context.Context, mine int) (claim, error) {
	for i := range h {
		if i == mine {
			continue
		}
		l, err := listenOn(ctx, i)
		if err != nil {
			return claim{}, err
		}
		if l != nil {
			_ = l.Close()
			continue
		}
		if h.look(ctx, i, !h[i].owner()); h[i].owner() {
			return h[i], nil
		}
	}
	return claim{}, nil
}

// listenOn listens on name i; nil without an error if it is held.
func listenOn(ctx context.Context, i int) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", lockName(i))
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, nil //nolint:nilnil // held is no error here
	case err != nil:
		return nil, fmt.Errorf("taking the lock %s: %w", lockName(i), err)
	}
	return l, nil
}

// look finds out who holds name i, if that was not seen lately or is wanted now. Nobody accepts the connection that tells, so
// it is not made each time.
func (h *claims) look(ctx context.Context, i int, now bool) {
	if !now && time.Since(h[i].seen) < lockReport {
		return
	}
	if c := claimOn(ctx, lockName(i)); ctx.Err() == nil || h[i].seen.IsZero() {
		h[i] = c
	}
}

// owner says whether the name is held by what may be the owner of the node: a process of root or of this user, or one of
// which the kernel does not say whose it is.
func (h claim) owner() bool { return h.held && (h.uid <= 0 || h.uid == os.Getuid()) }

func (h claim) String() string {
	switch {
	case h.uid < 0:
		return "a process that does not say"
	case h.pid == 0:
		return fmt.Sprintf("a process of uid %d in another pid namespace", h.uid)
	}
	return fmt.Sprintf("pid %d of uid %d%s", h.pid, h.uid, commandOf(h.pid))
}

// claimOn asks the kernel which process listens on name.
func claimOn(ctx context.Context, name string) claim {
	h := claim{seen: time.Now(), held: true, uid: -1}
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", name)
	if err != nil {
		h.held = !errors.Is(err, unix.ECONNREFUSED)
		return h
	}
	defer func() { _ = c.Close() }()
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return h
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return h
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			h.pid, h.uid = int(cred.Pid), int(cred.Uid)
		}
	})
	return h
}
