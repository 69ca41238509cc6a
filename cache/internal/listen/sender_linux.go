package listen

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sender sends the replies of tasks over one UDP socket, as many in one system call as
// there are by the time it is made. The first task that has a reply sends until there is
// none left; the others leave theirs to it, with their buffers, and it gives them back
// to the pool.
type sender struct {
	mu      sync.Mutex
	ready   []*task
	spare   []*task
	sending bool

	hdrs [batchSize]mmsghdr // of the one that sends
}

// post puts a task that has a reply in line. If it returns true the task has to send.
func (s *sender) post(t *task) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, t)
	first := !s.sending
	s.sending = true
	return first
}

// next returns the tasks in line; none ends the sending.
func (s *sender) next(done []*task) []*task {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = done[:0]
	list := s.ready
	s.ready, s.spare = s.spare, nil
	s.sending = len(list) > 0
	return list
}

// sendReplies sends for all tasks in line; t is the one that does so.
func (w *udpWorker) sendReplies(t *task) {
	// The descriptor is held meanwhile. If it is closed there is nothing to send to.
	if w.raw.Control(t.sendAll) != nil {
		for list := w.sender.next(nil); len(list) > 0; list = w.sender.next(list) {
			t.release(list)
		}
	}
}

// sendLoop sends until no task is in line.
func (t *task) sendLoop(fd uintptr) {
	s := &t.udp.sender
	var list []*task
	for {
		// Those who are about to have a reply go first, so that one call takes them all.
		runtime.Gosched()
		if list = s.next(list); len(list) == 0 {
			return
		}
		for rest := list; len(rest) > 0; {
			n := min(len(rest), batchSize)
			for i, other := range rest[:n] {
				s.hdrs[i].hdr = other.hdr
			}
			if refused := sendBatch(fd, s.hdrs[:n]); refused > 0 {
				t.pool.ep.metrics.sendError.Add(float64(refused))
			}
			rest = rest[n:]
		}
		clear(s.hdrs[:])
		t.release(list)
	}
}

// release gives the tasks whose replies are sent back to the pool, but for t itself,
// which is still at work.
func (t *task) release(list []*task) {
	for i, other := range list {
		list[i] = nil
		if other != t {
			other.clear()
			t.pool.put(other)
		}
	}
}

// sendBatch sends msgs without blocking for long and returns how many the kernel refused.
func sendBatch(fd uintptr, msgs []mmsghdr) (refused int) {
	for len(msgs) > 0 {
		n, _, errno := syscall.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == 0:
			msgs = msgs[n:]
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && writable(fd):
		default:
			// The error is about the first message alone: a route that is gone, a
			// firewall's EPERM.
			refused++
			msgs = msgs[1:]
		}
	}
	return refused
}

// writable waits a moment for room in the send buffer of fd.
func writable(fd uintptr) bool {
	const patience = 5 // milliseconds; the queue of a network card empties faster
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, patience)
	return err == nil && n > 0
}
