package forward

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

const (
	// plainFor is how long an upstream that does not take EDNS is asked without, by those
	// who do not need it.
	plainFor = 5 * time.Minute

	// lostToEDNS is how many queries must stay without a reply until they are sent again
	// without EDNS, and nothing else be answered meanwhile, before that is blamed on EDNS.
	lostToEDNS = 2

	optLen = 11 // octets of an OPT record without options
)

// ednsRecord is what is known of how an upstream takes EDNS. Times are since its birth.
type ednsRecord struct {
	taken atomic.Int64 // when it last answered a query with OPT
	plain atomic.Int64 // until then it is asked without
	deaf  atomic.Int64 // until then also with DO: it answers nothing else, not even with an error
	lost  atomic.Int32
}

// heard tells whether the upstream has lately answered a query with OPT.
func (r *ednsRecord) heard(now time.Duration) bool {
	taken := r.taken.Load()
	return taken != 0 && int64(now)-taken <= int64(plainFor)
}

// edns tells whether q has an OPT record, as the last thing in it and without options.
func (q query) edns() bool {
	return len(q.msg) == q.end+optLen && string(q.msg[6:headerLen]) == "\x00\x00\x00\x00\x00\x01" && q.msg[q.end+2] == wire.TypeOPT
}

// do tells whether a query with EDNS wants DNSSEC records, which without it cannot be had.
func (q query) do() bool { return q.msg[q.end+7]&0x80 != 0 }

// plain is q without its OPT record.
func (q query) plain() query {
	msg := append([]byte(nil), q.msg[:q.end]...)
	msg[headerLen-1] = 0
	return query{msg, q.end}
}

// exchange asks once, or twice if the upstream does not take EDNS (RFC 6891 section 7).
// silentSince is when it began not to answer this very query; the zero value stands for
// never. With an error there may be a reply too, as with once.
//
// A query with DO goes without EDNS as well, but only where nothing at all comes back for
// EDNS. RFC 6891 section 6.2.2 forbids that where DNSSEC is required; DO only says that
// signatures are welcome. Who validates finds none and is no worse off than with
// SERVFAIL, and everybody else has an answer.
func (u *upstream) exchange(ctx context.Context, q query, end, silentSince time.Time) ([]byte, error) {
	if !q.edns() {
		reply, _, err := u.once(ctx, q, end)
		return reply, err
	}
	now := time.Since(u.born)
	silent := !silentSince.IsZero() && u.edns.taken.Load() <= int64(silentSince.Sub(u.born))
	without := u.edns.plain.Load() > int64(now)
	if q.do() {
		silent = silent && !u.edns.heard(now)
		without = u.edns.deaf.Load() > int64(now)
	}
	if silent || without {
		reply, _, err := u.once(ctx, q.plain(), end)
		if silent && err == nil && u.edns.lost.Add(1) >= lostToEDNS {
			u.edns.plain.Store(int64(now + plainFor))
			if !u.edns.heard(now) {
				u.edns.deaf.Store(int64(now + plainFor))
			}
		}
		return reply, err
	}
	reply, was, err := u.once(ctx, q, end)
	if err != nil || !u.refusesEDNS(q, was, now) {
		return reply, err
	}
	bare, was, err := u.once(ctx, q.plain(), end)
	if bare == nil {
		return reply, nil
	}
	if was.rcode == wire.NoError || was.rcode == wire.NXDomain {
		u.edns.plain.Store(int64(now + plainFor))
	}
	return bare, err
}

// refusesEDNS tells whether a reply to q may be owed to its OPT record, and notes what it
// shows.
func (u *upstream) refusesEDNS(q query, was found, now time.Duration) bool {
	switch {
	case was.rcode == wire.BadVers:
		return true
	case was.edns:
	case was.rcode == wire.FormErr || was.rcode == wire.NotImp:
		return true
	case was.rcode == wire.ServFail:
		// A failure to answer, most likely, unless it answers nothing that has OPT.
		return !q.do() && !u.edns.heard(now)
	}
	u.edns.taken.Store(max(1, int64(now)))
	if u.edns.lost.Load() != 0 {
		u.edns.lost.Store(0)
	}
	if u.edns.plain.Load() != 0 {
		u.edns.plain.Store(0)
		u.edns.deaf.Store(0)
	}
	return false
}
