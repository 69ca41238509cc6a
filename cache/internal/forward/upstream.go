package forward

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// upstream is one server: its sockets and its health.
type upstream struct {
	f       *Forward
	target  Target
	metrics *targetMetrics
	udp     *udpPool
	streams *streamPool

	tlsConfig *tls.Config // of a TLS target

	born time.Time
	edns ednsRecord

	fails    atomic.Int32  // failed health checks in a row
	checking atomic.Bool   // a health check is at work
	loops    atomic.Uint64 // zones in which what is sent there comes back; see loopProber
	gone     atomic.Bool   // no upstream any more
}

func newUpstream(f *Forward, t Target) *upstream {
	u := &upstream{f: f, target: t, metrics: f.metrics.target(t), born: time.Now()}
	u.udp = newUDPPool(u)
	u.streams = newStreamPool(u)
	if t.TLS {
		u.tlsConfig = tlsConfig(f.cfg, t)
	}
	return u
}

// overStream tells whether every query goes over TCP or TLS.
func (u *upstream) overStream() bool { return u.f.cfg.ForceTCP || u.target.TLS }

// found is what a look at a reply has shown.
type found struct {
	rcode wire.Rcode
	edns  bool
}

// once asks one time: over UDP, and over TCP after a reply that is truncated or malformed;
// or over TCP only. With an error there may be a reply too: one with TC, to which TCP
// brought no better one.
func (u *upstream) once(ctx context.Context, q query, end time.Time) (reply []byte, was found, err error) {
	if u.overStream() {
		return u.overTCP(ctx, q, end)
	}
	if reply, err = u.udp.exchange(ctx, q, end); err != nil {
		return nil, was, err
	}
	var sound bool
	was.rcode, was.edns, sound = wire.Check(q.question(), reply)
	if sound && !isTruncated(reply) {
		return reply, was, nil
	}
	full, better, err := u.overTCP(ctx, q, end)
	switch {
	case err == nil:
		return full, better, nil
	case sound:
		return reply, was, err
	case isTruncated(reply) || !errors.Is(err, wire.ErrMalformed):
		return q.truncated(reply), was, err // a datagram may have been cut on its way
	}
	return nil, was, err
}

func (u *upstream) overTCP(ctx context.Context, q query, end time.Time) (reply []byte, was found, err error) {
	if reply, err = u.streams.exchange(ctx, q, end); err != nil {
		return nil, was, err
	}
	var sound bool
	if was.rcode, was.edns, sound = wire.Check(q.question(), reply); !sound {
		return nil, was, fmt.Errorf("asking %s over tcp: %w", u.target, wire.ErrMalformed)
	}
	return reply, was, nil
}

// replied notes a reply to a query sent at the time start.
func (u *upstream) replied(start time.Time, reply []byte) {
	if u.fails.Load() != 0 {
		u.fails.Store(0)
	}
	u.metrics.observe(reply[3]&15, time.Since(start))
}

// failed notes that a query got no reply: time for a health check, and for a look
// whether it went in a circle.
func (u *upstream) failed() {
	if u.f.loops != nil {
		u.f.loops.suspect()
	}
	if u.f.cfg.MaxFails > 0 {
		u.startHealthCheck()
	}
}

func (u *upstream) down() bool {
	limit := u.f.cfg.MaxFails
	return limit > 0 && int(u.fails.Load()) >= limit
}

// retire ends what an upstream holds once it is not needed any more.
func (u *upstream) retire() {
	u.gone.Store(true)
	u.udp.close()
	u.streams.retire()
}

// close ends everything now.
func (u *upstream) close() {
	u.gone.Store(true)
	u.udp.close()
	u.streams.close()
}

// observe counts a reply with the response code that is in its header.
func (m *targetMetrics) observe(rcode byte, took time.Duration) {
	o := m.duration[rcode].Load()
	if o == nil {
		// Looked up when first needed: each is a histogram of its own.
		h := m.forRcode(rcode)
		o = &h
		m.duration[rcode].Store(o)
	}
	(*o).Observe(took.Seconds())
}

// tlsConfig is the client config for one upstream.
func tlsConfig(cfg Config, t Target) *tls.Config {
	c := cfg.TLS.Clone()
	if c == nil {
		c = new(tls.Config)
	}
	c.MinVersion = max(c.MinVersion, tls.VersionTLS12) // RFC 8310 section 9.2
	c.ServerName = cmp.Or(t.ServerName, cfg.ServerName, c.ServerName, t.Addr.Addr().WithZone("").String())
	if c.ClientSessionCache == nil {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	return c
}
