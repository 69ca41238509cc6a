package listen

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// task is one question at a time being resolved: the goroutine, the copy of the query,
// the buffer of the reply and where it goes. Between take and start it belongs to the
// socket loop that took it, from start on to its own goroutine.
type task struct {
	pool    *pool
	work    chan struct{}
	handler Handler
	query   []byte
	from    wire.Origin
	buf     []byte // for UDP

	// Where the reply goes: udp with hdr, or tcp.
	udp *udpWorker
	tcp *conn

	reply   []byte
	hdr     unix.Msghdr
	iov     unix.Iovec
	name    unix.RawSockaddrInet6
	control [controlSize]byte
	sendTo  func(fd uintptr)
}

func newTask(p *pool) *task {
	t := &task{pool: p, work: make(chan struct{}, 1)}
	t.hdr.Name = (*byte)(unsafe.Pointer(&t.name))
	t.hdr.Iov = &t.iov
	t.hdr.SetIovlen(1)
	t.sendTo = t.send
	return t
}

// start sets a filled task to work.
func (t *task) start(h Handler, from wire.Origin) {
	t.handler, t.from = h, from
	t.work <- struct{}{}
}

func (t *task) run() {
	for range t.work {
		switch {
		case t.udp != nil:
			if t.buf == nil {
				t.buf = make([]byte, udpReply)
			}
			if t.reply = t.resolve(t.buf); len(t.reply) > 0 {
				// The descriptor is held meanwhile; an error means it is closed.
				_ = t.udp.raw.Control(t.sendTo)
			}
		case t.tcp != nil:
			m := t.pool.ep.messages.Get().(*message)
			t.tcp.finish(t.resolve(m[:]))
			t.pool.ep.messages.Put(m)
		}
		t.handler, t.udp, t.tcp, t.reply, t.iov.Base = nil, nil, nil, nil, nil
		t.pool.put(t)
	}
}
