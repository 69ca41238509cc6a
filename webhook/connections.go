package main

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// How many connections each port holds. An API server needs one or two: it sends its calls side by side over each. The
// ports are open to every Pod of most clusters, and each connection takes memory before it has said anything.
const (
	mostConnections   = 128
	mostFromOneSource = 32
	// streamsPerConnection is how many reviews run side by side over one.
	streamsPerConnection = 100
	// streamBuffer is what may have arrived of bodies and not been read, for each connection.
	streamBuffer = 256 << 10
)

// connectionLimit shares the connections among those who ask: where all are taken, one that is new takes the place of
// the oldest of the source that has most, unless it comes from that source. So an API server always gets its one or two.
type connectionLimit struct {
	net.Listener
	log     *slog.Logger
	refused prometheus.Counter

	mu   sync.Mutex
	from map[netip.Addr][]*limitedConn // the oldest first
	all  int
}

func newConnectionLimit(l net.Listener, refused prometheus.Counter, log *slog.Logger) *connectionLimit {
	return &connectionLimit{Listener: l, log: log, refused: refused, from: map[netip.Addr][]*limitedConn{}}
}

func newRefusedConnections() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "nodedns_webhook_refused_connections_total",
		Help: "Connections closed because too many were open, in all or from the same source."})
}

// Accept is net.Listener's.
func (l *connectionLimit) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &limitedConn{Conn: conn, limit: l, source: sourceOf(conn)}
		out := l.take(c)
		if out == nil {
			return c, nil
		}
		l.refused.Inc()
		l.log.Debug("connection closed, too many are open", "source", out.source.String())
		_ = out.Close() // who is at the other end is not owed a good end
		if out != c {
			return c, nil
		}
	}
}

// take notes a new connection and gives the one that must be closed for it: itself, another, or none.
func (l *connectionLimit) take(c *limitedConn) *limitedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	has := len(l.from[c.source])
	if has >= mostFromOneSource {
		return c
	}
	var out *limitedConn
	if l.all >= mostConnections {
		most := has
		for _, conns := range l.from {
			if len(conns) > most {
				most, out = len(conns), conns[0]
			}
		}
		if out == nil {
			return c
		}
	}
	l.from[c.source] = append(l.from[c.source], c)
	l.all++
	return out
}

func (l *connectionLimit) give(c *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conns := l.from[c.source]
	i := slices.Index(conns, c)
	if i < 0 {
		return // closed before, or never taken
	}
	l.all--
	if conns = slices.Delete(conns, i, i+1); len(conns) == 0 {
		delete(l.from, c.source)
	} else {
		l.from[c.source] = conns
	}
}

// sourceOf is the address of the other end; those that have none count as one.
func sourceOf(conn net.Conn) netip.Addr {
	if at, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return at.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

type limitedConn struct {
	net.Conn
	limit  *connectionLimit
	source netip.Addr
}

// Close is net.Conn's.
func (c *limitedConn) Close() error {
	c.limit.give(c)
	return c.Conn.Close()
}
