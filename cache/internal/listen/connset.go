package listen

import (
	"net/netip"
	"sync"
	"time"
)

// connSet holds the open TCP connections and keeps them within their limits.
type connSet struct {
	max, maxPerClient int

	mu        sync.Mutex
	conns     map[*conn]struct{}
	perClient map[netip.Addr]int
	draining  bool

	ended sync.WaitGroup
}

func newConnSet(limit, perClient int) *connSet {
	return &connSet{
		max:          limit,
		maxPerClient: perClient,
		conns:        make(map[*conn]struct{}),
		perClient:    make(map[netip.Addr]int),
	}
}

// admit takes c in. At a limit the connection that has been idle for longest makes room
// (RFC 7766 section 6.1 lets a server close idle ones) and is returned for the caller
// to close; if none is idle, admit returns the limit and ok is false.
func (s *connSet) admit(c *conn) (evicted *conn, limit rejection, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ip := c.client.Addr()
	switch {
	case s.perClient[ip] >= s.maxPerClient:
		evicted = s.longestIdleLocked(func(o *conn) bool { return o.client.Addr() == ip })
		limit = rejectClient
	case len(s.conns) >= s.max:
		evicted = s.longestIdleLocked(func(*conn) bool { return true })
		limit = rejectTotal
	default:
		s.addLocked(c)
		return nil, 0, true
	}
	if evicted == nil {
		return nil, limit, false
	}
	s.removeLocked(evicted)
	s.addLocked(c)
	return evicted, 0, true
}

func (s *connSet) longestIdleLocked(eligible func(*conn) bool) *conn {
	var found *conn
	var since time.Time
	for c := range s.conns {
		if !eligible(c) {
			continue
		}
		if t, idle := c.idleSince(); idle && (found == nil || t.Before(since)) {
			found, since = c, t
		}
	}
	return found
}

func (s *connSet) addLocked(c *conn) {
	c.draining = s.draining // not yet shared
	s.conns[c] = struct{}{}
	s.perClient[c.client.Addr()]++
}

// remove takes c out; it does nothing if an eviction has done so.
func (s *connSet) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(c)
}

func (s *connSet) removeLocked(c *conn) {
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	ip := c.client.Addr()
	if s.perClient[ip]--; s.perClient[ip] == 0 {
		delete(s.perClient, ip)
	}
}

// drain makes connections, those to come as well, close once they have been silent for a
// moment.
func (s *connSet) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for c := range s.conns {
		c.drain()
	}
}

// closeAll cuts the connections off.
func (s *connSet) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.tcp.Close()
	}
}

// wait returns when the last connection has ended.
func (s *connSet) wait() { s.ended.Wait() }
