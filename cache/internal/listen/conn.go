package listen

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

const (
	// smallBuffer is the read buffer of a connection whose queries are of usual size.
	smallBuffer = 1024

	// highWater is the size of the replies waiting for one connection above which
	// nothing more is read from it.
	highWater = 256 << 10

	// maxQueued bounds the replies waiting for all clients of an Endpoint together.
	// Beyond it a connection is cut off whose replies would take more than fairShare,
	// so that no more wait than maxQueued and MaxConns times fairShare, 32 MiB.
	maxQueued = 16 << 20
	fairShare = 8 << 10
)

// conn is one TCP connection: a goroutine that reads and answers hits, tasks that answer
// the rest in whatever order they are done (RFC 7766 section 7), and, while there are
// replies to send, one of them or a goroutine of its own that writes.
type conn struct {
	ep     *Endpoint
	tcp    *net.TCPConn
	client netip.AddrPort

	// Owned by the reading goroutine.
	in      []byte    // read but not yet served: in[served:]
	served  int       // where the next message begins
	started time.Time // when the first octet of an unfinished message came

	mu       sync.Mutex
	changed  sync.Cond // of pending, writing, broken and unsent
	out      []byte    // framed replies that wait for the writer
	unsent   int       // size of out and of what is being written
	spare    []byte    // the writer's last buffer, to be used again
	writing  bool      // somebody is the writer
	broken   bool      // nothing can be written any more
	pending  int       // questions being resolved
	reading  bool      // a message has begun to arrive or is being served
	idle     time.Time // since when nothing has gone on
	draining bool
}

func newConn(e *Endpoint, tcp *net.TCPConn) *conn {
	remote := tcp.RemoteAddr().(*net.TCPAddr).AddrPort()
	c := &conn{
		ep:     e,
		tcp:    tcp,
		client: netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port()),
		idle:   time.Now(),
	}
	c.changed.L = &c.mu
	return c
}

// serve reads and answers until the client or a limit ends the connection, and then
// until all that was asked is answered.
func (c *conn) serve() {
	defer c.ep.conns.remove(c)
	defer c.tcp.Close()
	for {
		if !c.serveBuffered() {
			c.ep.metrics.closed[closeBroken].Inc()
			break
		}
		c.flush()
		if !c.roomForMore() || !c.read() {
			break
		}
	}
	c.finishAll()
}

// serveBuffered serves all complete messages in the buffer; false if what came is no DNS.
func (c *conn) serveBuffered() bool {
	turn, gen := c.takeTurn()
	defer func() { c.endTurn(turn, gen) }()
	for {
		rest := c.in[c.served:]
		if len(rest) < 2 {
			break
		}
		size := int(binary.BigEndian.Uint16(rest))
		if size < headerLen || size > tcpQuery {
			return false
		}
		if len(rest) < 2+size {
			break
		}
		c.serveMessage(gen, rest[2:2+size])
		c.served += 2 + size
		c.started = time.Now()
		if c.hasRoom() {
			continue
		}
		c.endTurn(turn, gen) // not while waiting for the client
		ok := c.roomForMore()
		turn, gen = c.takeTurn()
		if !ok {
			return true
		}
	}
	// What is left is the beginning of a message; make room for all of it.
	rest := c.in[c.served:]
	need := smallBuffer
	if len(rest) >= 2 {
		need = max(need, 2+int(binary.BigEndian.Uint16(rest)))
	}
	if need > cap(c.in) || cap(c.in) > need && need == smallBuffer {
		c.in = append(make([]byte, 0, need), rest...)
	} else {
		c.in = c.in[:copy(c.in[:cap(c.in)], rest)]
	}
	c.served = 0
	return true
}

// takeTurn waits until c may serve what it has read, and returns what by.
func (c *conn) takeTurn() (*turn, *generation) {
	t := c.ep.turns.take()
	return t, c.ep.join()
}

func (c *conn) endTurn(t *turn, gen *generation) {
	gen.leave()
	c.ep.turns.give(t)
}

// serveMessage answers one query or hands it to a task.
func (c *conn) serveMessage(gen *generation, query []byte) {
	m := c.ep.messages.Get().(*message)
	defer c.ep.messages.Put(m)
	defer func() {
		if r := recover(); r != nil {
			c.ep.panicked(r)
			c.queue(wire.AppendError(m[:0], query, wire.ServFail))
		}
	}()
	from := wire.Origin{Client: c.client, Transport: wire.TCP}
	reply, ok := gen.handler.Hit(m[:0], query, from)
	switch {
	case ok && len(reply) > maxMessage:
		c.queue(wire.AppendError(m[:0], query, wire.ServFail))
	case ok:
		c.queue(reply)
	case !c.handOver(gen, query, from):
		c.ep.metrics.overload[wire.TCP].Inc()
		c.queue(wire.AppendError(m[:0], query, wire.ServFail))
	}
}

// handOver gives a query to the pool; false if the pool is full.
func (c *conn) handOver(gen *generation, query []byte, from wire.Origin) bool {
	t := c.ep.pool.take()
	if t == nil {
		return false
	}
	c.mu.Lock()
	c.pending++
	c.mu.Unlock()
	t.query = append(t.query[:0], query...)
	t.tcp = c
	t.start(gen, from)
	return true
}

// finish takes the reply of a task.
func (c *conn) finish(reply []byte) {
	c.queue(reply)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending--
	c.idle = time.Now()
	c.changed.Broadcast()
	if len(c.out) > 0 && !c.writing {
		c.writing = true
		// Not by the task itself: a client that does not read must not hold it.
		go c.write()
	}
}

func (c *conn) hasRoom() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hasRoomLocked()
}

func (c *conn) hasRoomLocked() bool {
	return !c.broken && c.pending < c.ep.cfg.MaxPipeline && c.unsent <= highWater
}

// roomForMore waits while the client has as many questions open, or as many replies
// waiting, as it may. It returns false if the connection is broken.
func (c *conn) roomForMore() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.broken && !c.hasRoomLocked() {
		if len(c.out) > 0 && !c.writing {
			c.writing = true
			go c.write()
		}
		c.changed.Wait()
	}
	return !c.broken
}

// read waits for more from the client; false ends the connection.
func (c *conn) read() bool {
	partial := len(c.in) > 0
	if !partial {
		c.started = time.Time{}
	} else if c.started.IsZero() {
		c.started = time.Now()
	}
	_ = c.tcp.SetReadDeadline(c.deadline(partial))
	c.setReading(partial)
	n, err := c.tcp.Read(c.in[len(c.in):cap(c.in)])
	if n > 0 {
		c.setReading(true)
		if !partial {
			c.started = time.Now()
		}
		c.in = c.in[:len(c.in)+n]
		return true
	}
	switch {
	case errors.Is(err, io.EOF): // maybe of one direction only: what was asked gets answered
	case errors.Is(err, os.ErrDeadlineExceeded):
		return c.outwaits(partial)
	}
	return false
}

// deadline bounds the wait for more: a message has to be there in time as a whole, so
// that octets dripping in do not hold the connection.
func (c *conn) deadline(partial bool) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case partial:
		return c.started.Add(c.ep.cfg.ReadTimeout)
	case c.draining:
		return time.Now().Add(quiet)
	default:
		return time.Now().Add(c.ep.cfg.IdleTimeout)
	}
}

// outwaits tells whether the connection lives on although its deadline has passed.
func (c *conn) outwaits(partial bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case partial && time.Since(c.started) < c.ep.cfg.ReadTimeout:
		return true // drain has cut the wait short
	case partial:
		c.ep.metrics.closed[closeSlowRead].Inc()
		return false
	case c.pending > 0 || c.writing:
		return true // it is we who are slow
	case c.draining:
		return time.Since(c.idle) < quiet
	case time.Since(c.idle) < c.ep.cfg.IdleTimeout:
		return true // a reply went out meanwhile
	default:
		c.ep.metrics.closed[closeIdle].Inc()
		return false
	}
}

func (c *conn) setReading(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading && !on {
		c.idle = time.Now()
	}
	c.reading = on
}

// idleSince tells since when nothing has gone on; false if something does.
func (c *conn) idleSince() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle, !c.reading && !c.writing && c.pending == 0
}

// drain shortens the wait for more.
func (c *conn) drain() {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	_ = c.tcp.SetReadDeadline(time.Now().Add(quiet))
}

// finishAll returns when all questions are answered and all replies written.
func (c *conn) finishAll() {
	c.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.pending > 0 || c.writing {
		c.changed.Wait()
	}
}
