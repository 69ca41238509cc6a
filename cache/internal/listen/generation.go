package listen

import "sync/atomic"

// generation is one handler of an Endpoint with the number of those who may call it: the
// Endpoint itself until another one takes its place, each UDP loop that has not looked
// since, connections while they serve what they have read, questions being resolved.
//
// A UDP loop stays a user from batch to batch and only compares pointers, so that a hit
// pays nothing for it.
type generation struct {
	handler Handler
	users   atomic.Int64
	drained chan struct{} // closed when the last user has gone
}

func newGeneration(h Handler) *generation {
	g := &generation{handler: h, drained: make(chan struct{})}
	g.users.Store(1)
	return g
}

// join adds a user; false if the last one has gone already.
func (g *generation) join() bool {
	for {
		n := g.users.Load()
		if n == 0 {
			return false
		}
		if g.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave takes a user away.
func (g *generation) leave() {
	if g.users.Add(-1) == 0 {
		close(g.drained)
	}
}

// join makes the caller a user of the current generation.
func (e *Endpoint) join() *generation {
	for {
		if g := e.current.Load(); g.join() {
			return g
		}
	}
}

// Swap makes h the handler of all queries from now on. Those that are being resolved
// stay with the handler that they came to. The channel is closed when nothing can call
// the former handler any more; what it needs has to live until then. After Run has
// returned that is so as well.
func (e *Endpoint) Swap(h Handler) (drained <-chan struct{}) {
	old := e.current.Swap(newGeneration(h))
	old.leave()
	// An idle loop would hold it until its next heartbeat. A loop that sets its own
	// deadline after this looks for the handler once more before it waits.
	e.wakeWorkers()
	return old.drained
}
