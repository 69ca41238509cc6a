package forward

import (
	"net"
	"os"
	"time"
)

// sweep looks after time: of the calls, of a connection without a sign of life, of one
// without work.
func (s *stream) sweep() {
	s.mu.Lock()
	conn := s.sweepLocked(time.Now())
	s.mu.Unlock()
	closeConn(conn)
}

// sweepLocked returns the connection if it has to be closed.
func (s *stream) sweepLocked(now time.Time) net.Conn {
	if s.err != nil {
		return nil
	}
	if now.After(s.dies) {
		s.closing.Store(true)
		s.retired = true
	}
	s.sweepCallsLocked(now)
	if len(s.calls) > 0 {
		s.timer.Reset(sweepEvery)
		return nil
	}
	wait := s.pool.up.f.cfg.Expire - now.Sub(s.idle)
	if wait <= 0 || s.closing.Load() || s.stalled.Load() {
		return s.failLocked(errGone)
	}
	s.timer.Reset(wait)
	return nil
}

// sweepCallsLocked ends the calls whose time is up and sends those elsewhere that seem to
// wait in vain.
func (s *stream) sweepCallsLocked(now time.Time) {
	var oldest, other *call // other is one that waits behind
	patience := s.pool.patience()
	for _, c := range s.calls {
		if !now.Before(c.end) {
			s.finishLocked(c, nil, os.ErrDeadlineExceeded)
			continue
		}
		if oldest == nil || c.sent.Before(oldest.sent) {
			oldest, c = c, oldest
		}
		if c != nil && !c.moved && now.Sub(c.sent) >= patience {
			other = c
		}
	}
	if oldest == nil || s.conn == nil {
		return
	}
	sign := s.born.Add(time.Duration(s.sign.Load()))
	if now.Sub(sign) < patience || now.Sub(oldest.sent) < patience {
		return
	}
	s.stalled.Store(true)
	if s.pool.overtaken(sign, now) {
		for _, c := range s.calls {
			s.elsewhereLocked(c, c == oldest)
		}
		return
	}
	// One query alone shows whether it is the connection or the server that takes its
	// time. The oldest may itself be what takes long.
	switch {
	case other != nil && s.pool.mayProbe(now):
		s.elsewhereLocked(other, false)
	case other == nil && s.proven && !oldest.moved && s.pool.mayProbe(now):
		s.elsewhereLocked(oldest, true)
	}
}

// elsewhereLocked has c sent over another connection as well, once.
func (s *stream) elsewhereLocked(c *call, alone bool) {
	if !c.moved {
		c.moved, c.alone = true, alone
		c.elsewhere <- struct{}{}
	}
}
