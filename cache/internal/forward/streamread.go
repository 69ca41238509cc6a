package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// read takes replies until the connection ends.
func (s *stream) read(conn net.Conn) error {
	buf := make([]byte, 4096)
	filled := 0
	for {
		n, err := conn.Read(buf[filled:])
		filled += n
		if n > 0 {
			used, err := s.take(buf[:filled])
			if err != nil {
				return err
			}
			filled = copy(buf, buf[used:filled])
			if filled >= 2 {
				if need := 2 + int(binary.BigEndian.Uint16(buf)); need > len(buf) {
					buf = append(make([]byte, 0, need), buf[:filled]...)[:need]
				}
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return cause(err)
		case n == len(buf) && len(buf) < 1<<16:
			buf = append(make([]byte, 0, 1<<16), buf[:filled]...)[:1<<16] // a busy one
		}
	}
}

// take hands out the complete replies in data and returns the octets they took.
func (s *stream) take(data []byte) (used int, err error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sign.Store(int64(now.Sub(s.born)))
	s.stalled.Store(false)
	s.burst.Store(0)
	for {
		rest := data[used:]
		if len(rest) < 2 {
			return used, nil
		}
		size := int(binary.BigEndian.Uint16(rest))
		if len(rest) < 2+size {
			return used, nil
		}
		if size < headerLen {
			return used, fmt.Errorf("a message of %d octets", size)
		}
		s.takeReplyLocked(rest[2:2+size], now)
		used += 2 + size
	}
}

func (s *stream) takeReplyLocked(msg []byte, now time.Time) {
	c := s.calls[binary.BigEndian.Uint16(msg)]
	switch {
	case c == nil:
		// Late: its asker has gone, or moved to another connection.
	case c.q.answeredBy(msg):
		s.proven = true
		s.pool.measured(now.Sub(c.sent))
		s.finishLocked(c, append(make([]byte, 0, len(msg)), msg...), nil)
		return
	case c.q.refusedBy(msg):
		s.proven = true
		s.finishLocked(c, c.q.bare(msg), nil)
		return
	}
	s.pool.up.metrics.ignored.Inc()
}
