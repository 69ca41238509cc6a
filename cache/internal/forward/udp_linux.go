package forward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Source ports. Each query goes out with a random ID from a port that the kernel chose at
// random (RFC 5452 section 9.2). A socket carries one query at a time and is drawn at
// random among the idle ones, so that for a spoofer who sees no packets the port of any
// one query is as uncertain as with a socket of its own: all that reuse adds is that the
// ports of two queries may be the same, which makes the union of his chances smaller.
// And a port stays open no longer than a query without a reply would hold it, so that
// scanning for open ports gains nothing either.
const (
	udpUses = 64
	udpAge  = 2 * time.Second
	udpIdle = 128 // sockets kept for the next burst
)

// udpPool hands out the UDP sockets to one upstream.
type udpPool struct {
	up      *upstream
	buffers sync.Pool // of *[maxMessage]byte

	mu     sync.Mutex
	idle   []*udpSocket
	timer  *time.Timer // closes what grew old; nil while idle is empty
	closed bool
}

func newUDPPool(u *upstream) *udpPool {
	p := &udpPool{up: u}
	p.buffers.New = func() any { return new([maxMessage]byte) }
	return p
}

// udpSocket is a socket connected to the upstream: the kernel drops what others send.
type udpSocket struct {
	pool *udpPool
	conn *net.UDPConn
	raw  syscall.RawConn
	born time.Time
	uses int

	// Of the exchange under way.
	q        query
	id       [2]byte
	reply    []byte
	strays   int
	err      error
	readable func(fd uintptr) bool
}

// exchange sends q over UDP and returns the first reply that is one, whole or not.
// What has another ID, another question or comes from elsewhere is ignored and does not
// extend the wait.
func (p *udpPool) exchange(ctx context.Context, q query, end time.Time) ([]byte, error) {
	reply, err := p.exchangeOn(ctx, p.take(), q, end)
	if errors.Is(err, errStale) {
		reply, err = p.exchangeOn(ctx, nil, q, end)
	}
	if err != nil {
		return nil, fmt.Errorf("asking %s over udp: %w", p.up.target, err)
	}
	return reply, nil
}

// exchangeOn uses an idle socket, or a new one if it is nil.
func (p *udpPool) exchangeOn(ctx context.Context, s *udpSocket, q query, end time.Time) ([]byte, error) {
	if s == nil {
		var err error
		if s, err = p.open(); err != nil {
			return nil, cause(err)
		}
	}
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) })
	}
	reply, err := s.exchange(q, end)
	if s.strays > 0 {
		p.up.metrics.ignored.Add(float64(s.strays))
	}
	// A late reply or a stray must not meet the next query on this port.
	if stop() && err == nil && s.strays == 0 {
		p.put(s)
	} else {
		s.conn.Close()
	}
	return reply, err
}

// take returns an idle socket, nil if there is none.
func (p *udpPool) take() *udpSocket {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := len(p.idle); n > 0; n = len(p.idle) {
		i := rand.IntN(n)
		s := p.idle[i]
		p.idle[i], p.idle[n-1] = p.idle[n-1], nil
		p.idle = p.idle[:n-1]
		if time.Since(s.born) < udpAge {
			p.up.metrics.udp.hits.Inc()
			return s
		}
		s.conn.Close()
	}
	return nil
}

// open makes a new socket.
func (p *udpPool) open() (*udpSocket, error) {
	p.up.metrics.udp.misses.Inc()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.up.target.Addr))
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, err
	}
	s := &udpSocket{pool: p, conn: conn, raw: raw, born: time.Now()}
	s.readable = s.receive
	return s, nil
}

// put takes back a socket whose query was answered.
func (p *udpPool) put(s *udpSocket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.uses++
	if p.closed || s.uses >= udpUses || len(p.idle) >= udpIdle {
		s.conn.Close()
		return
	}
	p.idle = append(p.idle, s)
	if p.timer == nil {
		p.timer = time.AfterFunc(udpAge, p.expire)
	}
}

// expire closes the sockets that have grown old.
func (p *udpPool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.idle[:0]
	for _, s := range p.idle {
		if time.Since(s.born) < udpAge {
			kept = append(kept, s)
		} else {
			s.conn.Close()
		}
	}
	clear(p.idle[len(kept):])
	p.idle = kept
	if len(kept) > 0 && !p.closed {
		p.timer.Reset(udpAge)
	} else {
		p.timer = nil
	}
}

func (p *udpPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, s := range p.idle {
		s.conn.Close()
	}
	p.idle = nil
	if p.timer != nil {
		p.timer.Stop()
	}
}

func (s *udpSocket) exchange(q query, end time.Time) ([]byte, error) {
	// The runtime's random numbers are ChaCha8 seeded by the kernel.
	id := uint16(rand.Uint32())
	s.q, s.id, s.reply, s.strays, s.err = q, [2]byte{byte(id >> 8), byte(id)}, nil, 0, nil
	if err := s.conn.SetReadDeadline(end); err != nil {
		return nil, cause(err)
	}
	if err := s.send(); err != nil {
		if s.uses > 0 {
			return nil, errStale // maybe an ICMP error that came after the last reply
		}
		return nil, cause(err)
	}
	err := s.raw.Read(s.readable)
	s.q = query{}
	switch {
	case s.err != nil:
		return nil, s.err
	case err != nil && errors.Is(err, os.ErrDeadlineExceeded):
		return nil, os.ErrDeadlineExceeded
	case err != nil:
		return nil, cause(err)
	}
	return s.reply, nil
}

// send sends the query under the exchange's ID.
func (s *udpSocket) send() error {
	buf := s.pool.buffers.Get().(*[maxMessage]byte)
	defer s.pool.buffers.Put(buf)
	n := copy(buf[:], s.q.msg)
	buf[0], buf[1] = s.id[0], s.id[1]
	_, err := s.conn.Write(buf[:n])
	return err
}

// receive reads packets until the reply is there, an error, or nothing more to read;
// then it returns false, to be called again when there is.
//
// The buffer has room for the largest datagram there is, whatever size the query
// offered, and is borrowed for the moment of reading only.
func (s *udpSocket) receive(fd uintptr) bool {
	buf := s.pool.buffers.Get().(*[maxMessage]byte)
	defer s.pool.buffers.Put(buf)
	for {
		r, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(buf)), maxMessage, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		default:
			s.err = errno
			return true
		}
		msg := buf[:r]
		switch {
		case len(msg) < headerLen || msg[0] != s.id[0] || msg[1] != s.id[1]:
			s.strays++
		case s.q.answeredBy(msg):
			s.reply = append(make([]byte, 0, len(msg)), msg...)
			return true
		case s.q.refusedBy(msg):
			s.reply = s.q.bare(msg)
			return true
		default:
			s.strays++
		}
	}
}

// cause strips what package net adds to an error, which says the address again.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
