package forward

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sweepEvery is how often a connection with queries under way looks for those whose
	// time is up.
	sweepEvery = 50 * time.Millisecond

	// maxLife and its spread end long-lived connections, so that their load finds
	// servers that were added behind a virtual address.
	maxLife    = 2 * time.Minute
	lifeSpread = time.Minute
)

// call is one query waiting for its reply on a stream.
type call struct {
	q     query
	end   time.Time
	done  chan struct{} // gets one token when reply and err are set
	reply []byte
	err   error

	// elsewhere gets one token, while done has none, when the query shall be sent over
	// another connection besides; over one of its own if alone is set.
	elsewhere chan struct{}
	alone     bool

	// Guarded by the mutex of the stream it is on.
	id    uint16
	sent  time.Time
	moved bool // elsewhere has had its token
}

func newCall() *call {
	return &call{done: make(chan struct{}, 1), elsewhere: make(chan struct{}, 1)}
}

func (c *call) reset(q query, end time.Time) {
	c.q, c.end, c.reply, c.err, c.moved, c.alone = q, end, nil, nil, false, false
	select {
	case <-c.elsewhere:
	default:
	}
}

// stream is one TCP or TLS connection with many queries under way, told apart by IDs of
// its own. One goroutine connects and then writes whatever has gathered since its last
// write, one reads.
type stream struct {
	pool   *streamPool
	serial uint64
	kick   chan struct{} // there is something to write

	inflight atomic.Int32 // len of calls, for the choice among streams
	burst    atomic.Int32 // queries since the last reply
	closing  atomic.Bool  // takes no new queries
	stalled  atomic.Bool  // silent while it owes replies
	sign     atomic.Int64 // of life: last octet, or first query after none; since born
	born     time.Time

	mu      sync.Mutex
	conn    net.Conn // nil until connected
	out     []byte   // framed queries that wait for the writer
	spare   []byte   // the writer's last buffer
	calls   map[uint16]*call
	nextID  uint16
	proven  bool      // has carried a reply
	idle    time.Time // since when no call was under way
	kept    bool      // counted in pool.idle
	dies    time.Time
	err     error // why it has ended
	timer   *time.Timer
	retired bool
}

func newStream(p *streamPool, serial uint64) *stream {
	now := time.Now()
	s := &stream{
		pool:   p,
		serial: serial,
		kick:   make(chan struct{}, 1),
		calls:  make(map[uint16]*call),
		nextID: uint16(rand.Uint32()),
		born:   now,
		idle:   now,
		dies:   now.Add(maxLife + rand.N(lifeSpread)),
	}
	s.timer = time.AfterFunc(sweepEvery, s.sweep)
	return s
}

func (s *stream) proto() string {
	if s.pool.up.target.TLS {
		return "tls"
	}
	return "tcp"
}

// add puts c in line for the writer. errStale means that the stream takes no more.
func (s *stream) add(c *call) error {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.retired {
		return errStale
	}
	for s.calls[s.nextID] != nil {
		s.nextID++
	}
	c.id, c.sent = s.nextID, now
	s.nextID++
	if len(s.calls) == 0 {
		s.unkeepLocked()
		s.sign.Store(int64(now.Sub(s.born)))
		s.timer.Reset(sweepEvery)
	}
	s.calls[c.id] = c
	s.inflight.Store(int32(len(s.calls)))
	s.burst.Add(1)
	at := len(s.out)
	s.out = binary.BigEndian.AppendUint16(s.out, uint16(len(c.q.msg)))
	s.out = append(s.out, c.q.msg...)
	binary.BigEndian.PutUint16(s.out[at+2:], c.id)
	if at == 0 {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
	return nil
}

// withdraw takes c back; false if it is done.
func (s *stream) withdraw(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.id] != c {
		return false
	}
	s.dropLocked(c)
	return true
}

func (s *stream) dropLocked(c *call) {
	delete(s.calls, c.id)
	s.inflight.Store(int32(len(s.calls)))
	if len(s.calls) == 0 {
		s.idle = time.Now()
		s.keepLocked()
	}
}

// keepLocked counts a connection without work among those that are kept, or ends it if
// they are as many as may be.
func (s *stream) keepLocked() {
	if s.err != nil || s.closing.Load() {
		return
	}
	s.kept = true
	limit := s.pool.up.f.cfg.MaxIdleConns
	if n := s.pool.idle.Add(1); limit > 0 && int(n) > limit {
		s.unkeepLocked()
		s.closing.Store(true)
		s.timer.Reset(0)
	}
}

func (s *stream) unkeepLocked() {
	if s.kept {
		s.kept = false
		s.pool.idle.Add(-1)
	}
}

// heldUp tells whether the stream owes replies and has said nothing for a while.
func (s *stream) heldUp(now time.Time) bool {
	return s.inflight.Load() > 0 && now.Sub(s.born)-time.Duration(s.sign.Load()) > heldUp
}

// finishLocked gives c its result; c belongs to its waiter afterwards.
func (s *stream) finishLocked(c *call, reply []byte, err error) {
	s.dropLocked(c)
	c.reply, c.err = reply, err
	c.done <- struct{}{}
}

// run connects, then writes until the stream ends.
func (s *stream) run() {
	defer s.pool.remove(s)
	conn, err := s.dial()
	if err != nil {
		s.fail(err)
		return
	}
	s.mu.Lock()
	s.conn = conn
	s.sign.Store(int64(time.Since(s.born)))
	ended := s.err != nil
	s.mu.Unlock()
	if ended {
		conn.Close()
		return
	}
	var reader sync.WaitGroup
	reader.Go(func() { s.fail(s.read(conn)) })
	s.fail(s.write(conn))
	reader.Wait()
}

func (s *stream) dial() (net.Conn, error) {
	up := s.pool.up
	ctx, cancel := context.WithTimeout(up.f.life, up.f.cfg.ReadTimeout)
	defer cancel()
	d := net.Dialer{KeepAlive: -1, Control: dialControl}
	conn, err := d.DialContext(ctx, "tcp", up.target.String())
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", cause(err))
	}
	if !up.target.TLS {
		return conn, nil
	}
	t := tls.Client(conn, up.tlsConfig)
	if err := t.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return t, nil
}

// write sends what has gathered, each time there is something.
func (s *stream) write(conn net.Conn) error {
	for range s.kick {
		// Those who are about to add their queries go first, so that one write takes
		// them all.
		runtime.Gosched()
		s.mu.Lock()
		if s.err != nil {
			s.mu.Unlock()
			break
		}
		buf := s.out
		s.out, s.spare = s.spare[:0], nil
		s.mu.Unlock()
		if len(buf) == 0 {
			continue
		}
		if _, err := conn.Write(buf); err != nil {
			return cause(err)
		}
		s.mu.Lock()
		if cap(buf) <= 1<<16 {
			s.spare = buf[:0]
		}
		s.mu.Unlock()
	}
	return errGone
}

// fail ends the stream. What was under way is stale, to be asked again, if the stream
// had been in working order before; on a new one the error is the server's.
func (s *stream) fail(err error) {
	s.mu.Lock()
	conn := s.failLocked(err)
	s.mu.Unlock()
	closeConn(conn)
}

// closeConn closes what failLocked has returned. Over TLS that may take 5 s: it says
// goodbye to a server that may not read.
func closeConn(conn net.Conn) {
	if conn != nil {
		conn.Close()
	}
}

// failLocked returns the connection, if there is one, for the caller to close once it
// has let go of the mutex.
func (s *stream) failLocked(err error) net.Conn {
	if s.err != nil {
		return nil
	}
	s.err = err
	s.closing.Store(true)
	s.unkeepLocked()
	s.timer.Stop()
	if s.proven && !errors.Is(err, errGone) {
		err = errStale
	}
	for _, c := range s.calls {
		s.finishLocked(c, nil, err)
	}
	close(s.kick)
	return s.conn
}

// retire takes no more queries and ends the stream with its last reply.
func (s *stream) retire() {
	s.closing.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	if s.err == nil {
		s.timer.Reset(0)
	}
}
