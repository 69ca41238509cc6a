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
// random (RFC 5452 section 9.2). A socket carries one query at a time, and few in all, and
// is drawn at random from several at least, so that who sees one query's port cannot tell
// the next one's. For a spoofer who sees no packets the port of any one query is as
// uncertain as with a socket of its own: all that reuse adds is that the ports of two
// queries may be the same, which makes the union of his chances smaller. And a port stays
// open no longer than a query without a reply would hold it, so that scanning for open
// ports gains nothing either.
const (
	udpUses  = 8
	udpAge   = 2 * time.Second
	udpLeast = 16  // sockets to draw from
	udpIdle  = 256 // sockets kept for the next burst
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
	q      query
	id     [2]byte
	reply  []byte
	strays int
	err    error
	sent   bool
	hdr    unix.Msghdr
	iov    [2]unix.Iovec
	ready  func(fd uintptr) bool
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
	reply, err := s.exchange(ctx, q, end)
	if s.strays > 0 {
		p.up.metrics.ignored.Add(float64(s.strays))
	}
	// A late reply or a stray must not meet the next query on this port.
	if err == nil && s.strays == 0 {
		p.put(s)
	} else {
		s.conn.Close()
	}
	return reply, err
}

// take returns an idle socket, nil if there are too few.
func (p *udpPool) take() *udpSocket {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := len(p.idle); n >= udpLeast; n = len(p.idle) {
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
	s.ready = s.serve
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

func (s *udpSocket) exchange(ctx context.Context, q query, end time.Time) ([]byte, error) {
	// The runtime's random numbers are ChaCha8 seeded by the kernel.
	id := uint16(rand.Uint32())
	s.q, s.id, s.reply, s.strays, s.err = q, [2]byte{byte(id >> 8), byte(id)}, nil, 0, nil
	s.sent = false
	err := s.wait(ctx, end)
	s.q, s.iov = query{}, [2]unix.Iovec{}
	if err == nil {
		err = s.err
	}
	return s.reply, err
}

// wait returns when the reply is there, at the time end, or soon after ctx has ended: it
// looks at ctx now and then, which spares nearly all queries the cost of being told.
func (s *udpSocket) wait(ctx context.Context, end time.Time) error {
	const look = 250 * time.Millisecond
	for {
		now := time.Now()
		if !now.Before(end) || ctx.Err() != nil {
			return os.ErrDeadlineExceeded
		}
		until := now.Add(look)
		if end.Before(until) {
			until = end
		}
		if err := s.conn.SetReadDeadline(until); err != nil {
			return cause(err)
		}
		err := s.raw.Read(s.ready)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return cause(err)
		}
	}
}

// serve sends the query when it is first called, and after that reads; it returns false
// to be called again when there is something to read. The poller has been armed before
// the first call, so that no reply can come too early to be noticed, and nothing needs
// to be read in vain.
func (s *udpSocket) serve(fd uintptr) bool {
	if s.sent {
		return s.receive(fd)
	}
	s.sent = true
	s.send(fd)
	return s.err != nil
}

// send sends the query under the exchange's ID without changing it.
func (s *udpSocket) send(fd uintptr) {
	s.iov[0].Base, s.iov[1].Base = &s.id[0], &s.q.msg[2]
	s.iov[0].SetLen(2)
	s.iov[1].SetLen(len(s.q.msg) - 2)
	s.hdr.Iov = &s.iov[0]
	s.hdr.SetIovlen(2)
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&s.hdr)), unix.MSG_DONTWAIT)
		switch {
		case errno == 0:
		case errno == unix.EINTR:
			continue
		case s.uses > 0:
			s.err = errStale // maybe an ICMP error that came after the last reply
		default:
			s.err = errno
		}
		return
	}
}

// receive reads packets until the reply is there, an error, or nothing more to read.
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
	if err == nil {
		return nil
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
