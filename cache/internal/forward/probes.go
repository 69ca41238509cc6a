package forward

import (
	"sync"
	"sync/atomic"
)

// Probes are the names of the loop probes under way. Forwards that share them know each
// other's: what one sends may come back to another. The zero value is ready for use.
type Probes struct {
	sent  atomic.Int32 // len of names, to spare other queries the lock
	mu    sync.Mutex
	names map[string]*atomic.Bool // first label, length included → seen
}

// seen tells whether q is a probe that came back.
func (p *Probes) seen(q query) bool {
	if p.sent.Load() == 0 || q.qtype() != typeHINFO {
		return false
	}
	label := q.msg[headerLen : headerLen+1+int(q.msg[headerLen])]
	p.mu.Lock()
	defer p.mu.Unlock()
	came, ok := p.names[string(lowered(label))]
	if ok {
		came.Store(true)
	}
	return ok
}

// add puts in a probe whose first label is given; came is set when it is seen.
func (p *Probes) add(label string) (came *atomic.Bool) {
	came = new(atomic.Bool)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.names == nil {
		p.names = make(map[string]*atomic.Bool)
	}
	p.names[probeKey(label)] = came
	p.sent.Add(1)
	return came
}

func (p *Probes) remove(label string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.names, probeKey(label))
	p.sent.Add(-1)
}

func probeKey(label string) string { return string(rune(len(label))) + label }

// lowered is a name in lower case: a forwarder on the way may have changed it.
func lowered(name []byte) []byte {
	b := append([]byte(nil), name...)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' { // no length octet is as large
			b[i] = c | 0x20
		}
	}
	return b
}
