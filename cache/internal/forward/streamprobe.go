package forward

import "time"

// A connection that owes replies and is silent may be dead without a sign (a virtual
// server that lost its endpoint), or one slow query holds up all behind it, or the server
// takes its time. The first two are told from the third by sending one query over another
// connection as well. If it is answered there while the first connection is still silent,
// all that is under way on connections as silent follows. Whatever comes first is taken.

// minPatience is how long a connection that owes replies may be silent at least.
const minPatience = 300 * time.Millisecond

// patience is how long a connection that owes replies may be silent before that is looked
// into: several times as long as replies usually take, but not so long that no time is
// left for another try.
func (p *streamPool) patience() time.Duration {
	usual := time.Duration(p.latency.Load())
	return min(max(minPatience, 4*usual), p.up.f.cfg.ReadTimeout*3/4)
}

// mayProbe tells whether one query may go over another connection to see what that
// brings: no more than one in the time of patience.
func (p *streamPool) mayProbe(now time.Time) bool {
	at := int64(now.Sub(p.up.born))
	last := p.probed.Load()
	return (last == 0 || at-last >= int64(p.patience())) && p.probed.CompareAndSwap(last, at)
}

// overtook notes that a query sent over another connection at that time was answered first.
func (p *streamPool) overtook(sent time.Time) {
	p.won.Store(int64(time.Since(p.up.born)))
	p.wonSince.Store(int64(sent.Sub(p.up.born)))
}

// overtaken tells whether a connection whose last sign of life was at that time has been
// overtaken by another one. A server that has both copies of a query may answer both at
// the same moment, so the first must be some time behind.
func (p *streamPool) overtaken(sign, now time.Time) bool {
	return int64(sign.Sub(p.up.born)) < p.wonSince.Load() && int64(now.Sub(p.up.born)) >= p.won.Load()+int64(heldUp)
}
