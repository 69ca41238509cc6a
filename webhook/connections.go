package main

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// How many connections are held for reviews. An API server needs one or two: it sends its calls side by side over each.
// The port is open to every Pod of most clusters, and each connection takes memory before it has said anything.
const (
	mostConnections   = 128
	mostFromOneSource = 32
	// streamsPerConnection is how many calls run side by side over one.
	streamsPerConnection = 100
	// streamBuffer is what may have arrived of bodies and not been read, for each connection.
	streamBuffer = 256 << 10
)

// connectionLimit closes connections beyond the limits as they come.
type connectionLimit struct {
	net.Listener
	log     *slog.Logger
	refused prometheus.Counter

	mu   sync.Mutex
	from map[netip.Addr]int
	all  int
}

func newConnectionLimit(l net.Listener, refused prometheus.Counter, log *slog.Logger) *connectionLimit {
	return &connectionLimit{Listener: l, log: log, refused: refused, from: map[netip.Addr]int{}}
}

func newRefusedConnections() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "nodedns_webhook_refused_connections_total",
		Help: "Connections closed on arrival because too many were open, in all or from the same source."})
}

// Accept is net.Listener's.
func (l *connectionLimit) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := sourceOf(conn)
		if l.take(source) {
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { l.give(source) })}, nil
		}
		l.refused.Inc()
		l.log.Debug("connection refused, too many are open", "source", source.String())
		_ = conn.Close() // it was never used
	}
}

func (l *connectionLimit) take(source netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= mostConnections || l.from[source] >= mostFromOneSource {
		return false
	}
	l.all++
	l.from[source]++
	return true
}

func (l *connectionLimit) give(source netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.from[source]--; l.from[source] == 0 {
		delete(l.from, source)
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
	release func()
}

// Close is net.Conn's.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
