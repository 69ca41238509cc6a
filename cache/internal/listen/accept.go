package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// accept takes in TCP connections until drain is closed, and then until none has come
// for a moment or over is closed. It unbinds the port, so that a successor gets all that
// come later.
func (e *Endpoint) accept(drain, over <-chan struct{}) error {
	defer e.listener.Close()
	for wait := heartbeat; ; {
		e.turned.Store(int64(time.Since(e.born)))
		// In this order: who closes drain sets a deadline afterwards.
		_ = e.listener.SetDeadline(time.Now().Add(wait))
		draining := wait == quiet
		select {
		case <-over:
			return nil
		case <-drain:
			if !draining {
				wait = quiet
				continue
			}
		default:
		}
		c, err := e.listener.AcceptTCP()
		switch {
		case err == nil:
			e.admit(c)
		case errors.Is(err, os.ErrDeadlineExceeded):
			if draining {
				return nil
			}
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accepting on %s over tcp: %w", e.addr, err)
		default:
			// Out of descriptors or memory, or a client that was gone at once. The
			// listener is as good as before; descriptors come back with time.
			e.metrics.acceptError.Inc()
			if n := e.failures.tell(time.Now()); n > 0 {
				e.log.Warn("accepting a connection failed", "address", e.addr, "error", err, "times", n)
			}
			if draining {
				pause(over, 50*time.Millisecond)
			} else {
				pause(drain, 50*time.Millisecond)
			}
		}
	}
}

// acceptFailures makes many failures few lines in the log.
type acceptFailures struct {
	told   time.Time
	untold int
}

// tell counts a failure and returns how many to tell of now.
func (f *acceptFailures) tell(now time.Time) int {
	const rest = 10 * time.Second
	f.untold++
	if now.Sub(f.told) < rest {
		return 0
	}
	n := f.untold
	f.told, f.untold = now, 0
	return n
}

func pause(until <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-until:
	}
}

// admit serves a connection if the limits have room for it.
func (e *Endpoint) admit(tcp *net.TCPConn) {
	c := newConn(e, tcp)
	evicted, limit, ok := e.conns.admit(c)
	if evicted != nil {
		e.metrics.closed[closeEvicted].Inc()
		evicted.tcp.Close()
	}
	if !ok {
		e.metrics.rejected[limit].Inc()
		tcp.Close()
		return
	}
	e.metrics.accepted.Inc()
	e.metrics.open.Inc()
	e.conns.ended.Go(func() {
		defer e.metrics.open.Dec()
		c.serve()
	})
}
