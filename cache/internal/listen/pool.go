package listen

import (
	"context"
	"sync"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// pool holds the goroutines that resolve what was no hit. Each is a task with its own
// buffers, used again and again, the latest first: its stack and buffers are warm, and
// the ones a burst left over are seen to be idle and go.
type pool struct {
	ep  *Endpoint
	ctx context.Context // of the questions; set by Run
	max int

	mu   sync.Mutex
	idle []*task
	size int       // tasks there are
	low  int       // fewest idle ones since the last trim
	all  sync.Cond // signalled when all tasks are idle

	ended sync.WaitGroup
}

func newPool(e *Endpoint) *pool {
	p := &pool{ep: e, ctx: context.Background(), max: e.cfg.MaxInflight}
	p.all.L = &p.mu
	return p
}

// take returns a task to be filled and started, or nil if as many as may be are at work.
func (p *pool) take() *task {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		t := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.low = min(p.low, n-1)
		return t
	}
	p.low = 0
	if p.size == p.max {
		return nil
	}
	p.size++
	t := newTask(p)
	p.ended.Go(t.run)
	return t
}

func (p *pool) put(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, t)
	if len(p.idle) == p.size {
		p.all.Broadcast()
	}
}

// wait returns when no task is at work.
func (p *pool) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) < p.size {
		p.all.Wait()
	}
}

// trim ends, each second, the tasks that were not needed in the last one.
func (p *pool) trim(done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			p.mu.Lock()
			p.endLocked(p.low)
			p.low = len(p.idle)
			p.mu.Unlock()
		}
	}
}

// stop ends all tasks, which must be idle, and waits for them.
func (p *pool) stop() {
	p.mu.Lock()
	p.endLocked(len(p.idle))
	p.mu.Unlock()
	p.ended.Wait()
}

// endLocked ends the n tasks that have been idle for longest.
func (p *pool) endLocked(n int) {
	for _, t := range p.idle[:n] {
		close(t.work)
	}
	rest := copy(p.idle, p.idle[n:])
	clear(p.idle[rest:])
	p.idle = p.idle[:rest]
	p.size -= n
}

// resolve asks the handler; a panic there becomes SERVFAIL.
func (t *task) resolve(buf []byte) (reply []byte) {
	defer func() {
		t.gen.leave()
		t.gen = nil
		if r := recover(); r != nil {
			t.pool.ep.panicked(r)
			reply = wire.AppendError(buf[:0], t.query, wire.ServFail)
		}
	}()
	reply = t.gen.handler.Resolve(t.pool.ctx, buf[:0], t.query, t.from)
	if len(reply) > maxMessage {
		reply = wire.AppendError(buf[:0], t.query, wire.ServFail)
	}
	return reply
}
