package listen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// udpWorker serves one UDP socket.
//
// Its loop is one goroutine that waits in the runtime's poller and moves batches with
// raw system calls; a thread of its own in a blocking receive cost more at full load, and
// at 20,000 questions a second neither was clearly cheaper (see cache/BENCHMARKS.md).
type udpWorker struct {
	ep     *Endpoint
	conn   *net.UDPConn
	raw    syscall.RawConn
	lane   uint8
	turned atomic.Int64
	sender sender

	// The rest belongs to the loop.
	gen      *generation
	batch    *batch
	next     int // packet of the batch to be served next
	received time.Time
	readable func(fd uintptr) bool
}

func newUDPWorker(e *Endpoint, c *net.UDPConn, lane uint8) (*udpWorker, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
	everywhere := local.Unmap().IsUnspecified()
	if everywhere {
		err := control(raw, func(fd int) error { return wantPktinfo(fd, local.Is6() && !local.Is4In6()) })
		if err != nil {
			return nil, fmt.Errorf("asking for destination addresses: %w", err)
		}
	}
	w := &udpWorker{ep: e, conn: c, raw: raw, lane: lane, batch: newBatch(everywhere)}
	w.readable = w.serveReady
	return w, nil
}

// run serves the socket until drain is closed, and then until it is dry or over is closed.
func (w *udpWorker) run(drain, over <-chan struct{}) error {
	w.gen = w.ep.join()
	defer func() { w.gen.leave() }()
	for {
		w.turn(heartbeat)
		select {
		case <-drain:
			return w.drain(over)
		default:
		}
		if err := w.read(); err != nil {
			return err
		}
	}
}

// turn notes that the loop turns and bounds the wait that follows.
func (w *udpWorker) turn(wait time.Duration) {
	w.turned.Store(int64(time.Since(w.ep.born)))
	_ = w.conn.SetReadDeadline(time.Now().Add(wait)) // fails on a closed socket only, as read will
	w.follow()                                       // in this order; see Swap
}

// follow lets go of a handler that is not the current one any more.
func (w *udpWorker) follow() {
	if w.gen == w.ep.current.Load() {
		return
	}
	w.gen.leave()
	w.gen = w.ep.join()
}

// read serves what arrives until the deadline.
func (w *udpWorker) read() error {
	err := w.raw.Read(w.readable)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return fmt.Errorf("receiving on %s over udp: %w", w.ep.addr, err)
}

// drain serves until nothing has come for a moment. Then it connects the socket to
// nobody, which takes it out of the kernel's choice for new packets, and serves what is
// in its buffer by then: nothing that the kernel had accepted goes unanswered, also when
// a successor shares the port and packets never cease.
func (w *udpWorker) drain(over <-chan struct{}) error {
	for {
		w.turn(quiet)
		if err := w.read(); err != nil {
			return err
		}
		dry := int64(time.Since(w.ep.born))-w.turned.Load() >= int64(quiet)
		select {
		case <-over:
			dry = true
		default:
		}
		if dry {
			break
		}
	}
	err := control(w.raw, disconnect)
	if err != nil {
		return fmt.Errorf("draining %s over udp: %w", w.ep.addr, err)
	}
	return control(w.raw, func(fd int) error {
		for w.serveReady(uintptr(fd)) {
			select {
			case <-over:
				return nil
			default:
			}
		}
		return nil
	})
}

// stretch is how many full batches the loop serves before it looks whether to go on.
const stretch = 16

// serveReady serves the packets in the buffer of fd. It returns false when there are no
// more, for the poller to wait: the poller reports each arrival, so that a batch which
// was not full needs no second look. True means that there may be more.
func (w *udpWorker) serveReady(fd uintptr) bool {
	for range stretch {
		n, errno := w.batch.receive(fd)
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		default:
			w.ep.metrics.receiveError.Inc()
			return false
		}
		w.received = time.Now()
		w.turned.Store(int64(w.received.Sub(w.ep.born)))
		w.serve(n)
		if refused := w.batch.flush(fd); refused > 0 {
			w.ep.metrics.sendError.Add(float64(refused))
		}
		w.batch.recycle(n)
		if n < batchSize {
			return false
		}
		// Raw system calls never let go of the processor; others wait for it.
		runtime.Gosched()
	}
	return true
}

// serve answers or hands over the first n packets of the batch.
func (w *udpWorker) serve(n int) {
	w.follow()
	for w.next = 0; w.next < n; {
		w.serveRest(n)
	}
}

// serveRest serves packets from w.next on; if the handler panics it answers for it and
// returns with the rest still to do.
func (w *udpWorker) serveRest(n int) {
	b, h := w.batch, w.gen.handler
	defer func() {
		if r := recover(); r != nil {
			w.ep.panicked(r)
			i := w.next - 1
			query, _ := b.packet(i)
			w.answer(i, wire.AppendError(b.out[i][:0], query, wire.ServFail))
		}
	}()
	for w.next < n {
		i := w.next
		w.next++
		query, cut := b.packet(i)
		if len(query) < headerLen {
			continue
		}
		if cut {
			w.answer(i, wire.AppendError(b.out[i][:0], query, wire.FormErr))
			continue
		}
		from := wire.Origin{Client: client(&b.names[i]), Transport: wire.UDP, Lane: w.lane, Received: w.received}
		reply, ok := h.Hit(b.out[i][:0], query, from)
		if !ok {
			if !w.handOver(i, query, from) {
				w.ep.metrics.overload[wire.UDP].Inc()
				w.answer(i, wire.AppendError(b.out[i][:0], query, wire.ServFail))
			}
			continue
		}
		w.answer(i, reply)
	}
}

func (w *udpWorker) answer(i int, reply []byte) {
	if len(reply) > 0 {
		w.batch.reply(i, reply)
	}
}

// handOver gives packet i to the pool; false if the pool is full.
func (w *udpWorker) handOver(i int, query []byte, from wire.Origin) bool {
	t := w.ep.pool.take()
	if t == nil {
		return false
	}
	t.query = append(t.query[:0], query...)
	t.udp, t.name = w, w.batch.names[i]
	r := &w.batch.recv[i].hdr
	t.hdr.Namelen = r.Namelen
	t.hdr.Control = nil
	t.hdr.SetControllen(0)
	if r.Control != nil {
		t.control = w.batch.control[i]
		turnAround(t.control[:r.Controllen])
		t.hdr.Control = &t.control[0]
		t.hdr.Controllen = r.Controllen
	}
	t.start(w.gen, from)
	return true
}

// disconnect connects a UDP socket to an address that never sends, the discard port of
// the loopback: packets from anyone else are not for it any more.
func disconnect(fd int) error {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	var nobody unix.Sockaddr = &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}
	if _, ok := sa.(*unix.SockaddrInet6); ok {
		nobody = &unix.SockaddrInet6{Port: 9, Addr: netip.IPv6Loopback().As16()}
	}
	return unix.Connect(fd, nobody)
}
