package resolve

import (
	"sync"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// outcome is how a question ended. It is shared by all who asked and never changes.
type outcome struct {
	answer *wire.Answer // nil if err is not
	failed bool         // the upstream answered with a failure
	cut    bool         // there is more to the answer, but nobody says it over TCP
	how    source
	err    error
}

// flight is a question on its way upstream.
type flight struct {
	done chan struct{} // closed once out is set
	out  *outcome
}

// flights lets each question be under way once, however many ask.
type flights struct {
	mu     sync.Mutex
	byName map[string]*flight
}

func (f *flights) init() { f.byName = make(map[string]*flight) }

// join returns the flight for key. leader is true for the caller that started it and
// must call land. Without room for another flight it returns nil.
func (f *flights) join(key string, limit int) (fl *flight, leader bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.byName[key]; fl != nil {
		return fl, false
	}
	if len(f.byName) >= limit {
		return nil, false
	}
	fl = &flight{done: make(chan struct{})}
	f.byName[key] = fl
	return fl, true
}

// land ends a flight that the caller leads.
func (f *flights) land(key string, fl *flight, out *outcome) {
	f.mu.Lock()
	delete(f.byName, key)
	f.mu.Unlock()
	fl.out = out
	close(fl.done)
}
