package forward

import (
	"fmt"
	"math/rand/v2"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// choose appends the upstreams to list in the order in which to try them for q. Those
// that loop are left out, and those that are down, unless all are.
func (f *Forward) choose(list []*upstream, q query) ([]*upstream, error) {
	ups := *f.ups.Load()
	if len(ups) == 0 {
		return nil, fmt.Errorf("%w: none configured", wire.ErrNoUpstream)
	}
	start := 0
	if f.cfg.Policy == RoundRobin {
		start = int(f.turn.Add(1)-1) % len(ups)
	}
	loops := 0
	for i := range ups {
		u := ups[(start+i)%len(ups)]
		switch {
		case f.loop(u, q):
			loops++
		case !u.down():
			list = append(list, u)
		}
	}
	switch {
	case len(list) > 0:
		if f.cfg.Policy == Random {
			shuffle(list)
		}
		return list, nil
	case loops == len(ups):
		return nil, wire.ErrLoop
	}
	f.metrics.healthBroken.Inc()
	if f.cfg.FailFast {
		return nil, fmt.Errorf("%w: all are down", wire.ErrNoUpstream)
	}
	// Maybe it is the health checks that fail: as CoreDNS does, try in random order.
	for _, u := range ups {
		if !f.loop(u, q) {
			list = append(list, u)
		}
	}
	shuffle(list)
	return list, nil
}

// loop tells whether q would come back from u.
func (f *Forward) loop(u *upstream, q query) bool {
	zones := u.loops.Load()
	return zones != 0 && zones&f.loops.zone(q) != 0
}

func shuffle(list []*upstream) {
	for i := len(list) - 1; i > 0; i-- {
		j := rand.IntN(i + 1)
		list[i], list[j] = list[j], list[i]
	}
}
