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

// sweepCallsLocked ends the calls whose time is up and moves those that wait in vain.
func (s *stream) sweepCallsLocked(now time.Time) {
	var oldest *call
	for _, c := range s.calls {
		if !now.Before(c.end) {
			s.finishLocked(c, nil, os.ErrDeadlineExceeded)
			continue
		}
		if oldest == nil || c.sent.Before(oldest.sent) {
			oldest = c
		}
	}
	if oldest == nil || s.conn == nil {
		return
	}
	if silent := now.Sub(s.born) - time.Duration(s.sign.Load()); silent < patience || now.Sub(oldest.sent) < patience {
		return
	}
	s.stalled.Store(true)
	for _, c := range s.calls {
		// The oldest on a connection that has never spoken may just be slow.
		if c.moves == 0 && (s.proven || c != oldest) && now.Sub(c.sent) >= patience {
			c.moves++
			c.alone = c == oldest
			s.finishLocked(c, nil, errStale)
		}
	}
}
