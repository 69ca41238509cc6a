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
	pool  *pool
	work  chan struct{}
	gen   *generation
	query []byte
	from  wire.Origin
	buf   [udpReply]byte

	// Where the reply goes: udp with hdr, or tcp.
	udp *udpWorker
	tcp *conn

	hdr     unix.Msghdr
	iov     unix.Iovec
	name    unix.RawSockaddrInet6
	control [controlSize]byte
	sendAll func(fd uintptr)
}

func newTask(p *pool) *task {
	t := &task{pool: p, work: make(chan struct{}, 1)}
	t.hdr.Name = (*byte)(unsafe.Pointer(&t.name))
	t.hdr.Iov = &t.iov
	t.hdr.SetIovlen(1)
	t.sendAll = t.sendLoop
	return t
}

// start sets a filled task to work.
func (t *task) start(gen *generation, from wire.Origin) {
	gen.join() // which its giver has not left
	t.gen, t.from = gen, from
	t.work <- struct{}{}
}

func (t *task) run() {
	for range t.work {
		if t.tcp != nil {
			t.tcp.finish(t.resolve(t.buf[:]))
		} else if !t.serveUDP() {
			continue // whoever sends the reply gives t back
		}
		t.clear()
		t.pool.put(t)
	}
}

// serveUDP resolves a question that came over UDP. It returns false if another task
// sends the reply and has t until then.
func (t *task) serveUDP() bool {
	reply := t.resolve(t.buf[:])
	if len(reply) == 0 {
		return true
	}
	t.iov.Base = unsafe.SliceData(reply)
	t.iov.SetLen(len(reply))
	w := t.udp
	if !w.sender.post(t) {
		return false
	}
	w.sendReplies(t)
	return true
}

// clear lets go of what belongs to a question that is done with.
func (t *task) clear() {
	t.udp, t.tcp, t.iov.Base = nil, nil, nil
}
