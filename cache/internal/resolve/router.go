package resolve

import (
	"bytes"
	"context"
	"slices"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// RouterConfig says what is served on one address and port.
type RouterConfig struct {
	// Server names the address in metrics, as CoreDNS does: "dns://169.254.25.10:53".
	Server string
	// Zones are those served here. A zone may be served by several routers. Of two with
	// the same name the first wins.
	Zones []*Zone
	// Nonce is the name of the probe's question (class CH, type TXT), in presentation
	// format: answered here and nowhere else. Empty means none.
	Nonce string
	// Metrics counts what is answered. Nil means that nothing is counted.
	Metrics *Metrics
}

// Router answers the questions that reach one address and port.
type Router struct {
	sites []site // longest name first
	nonce []byte
	none  *counters // for questions that belong to no zone
}

// site is a name with the zone that is served under it.
type site struct {
	name []byte
	zone *Zone
	*counters
}

// NewRouter returns a router. A Nonce that is not a name is like none.
func NewRouter(cfg RouterConfig) *Router {
	r := &Router{none: cfg.Metrics.site(cfg.Server, "dropped")}
	for _, z := range cfg.Zones {
		z.countOn(cfg.Metrics, cfg.Server)
		z.router.CompareAndSwap(nil, r)
		for _, name := range z.names {
			if slices.ContainsFunc(r.sites, func(s site) bool { return bytes.Equal(s.name, name) }) {
				continue
			}
			r.sites = append(r.sites, site{
				name: name, zone: z,
				counters: cfg.Metrics.site(cfg.Server, wire.FormatName(name)),
			})
		}
	}
	slices.SortStableFunc(r.sites, func(a, b site) int { return len(b.name) - len(a.name) })
	if cfg.Nonce != "" {
		r.nonce, _ = wire.ParseName(cfg.Nonce)
	}
	return r
}

// Attach makes the gauges show this router's zones, in the place of those that an older
// router has on the same address. To be called when the router comes into use: one that
// never does must not be seen.
func (r *Router) Attach() {
	for _, s := range r.sites {
		s.zone.extra.zone.Store(s.zone)
		if s.counters != nil {
			s.cached.Store(s.zone.store != nil)
		}
	}
}

// find returns the zone for q, or nil. A DS record belongs to the parent of the zone it
// describes (RFC 4035 section 2.4).
func (r *Router) find(q *wire.Query) *site {
	name := q.Name()
	var apex *site
	for i := range r.sites {
		s := &r.sites[i]
		if !wire.Under(name, s.name) {
			continue
		}
		if q.Type == wire.TypeDS && len(name) == len(s.name) && apex == nil {
			apex = s
			continue
		}
		return s
	}
	return apex
}

// Hit answers query from memory, without blocking and, for a plain query, without
// allocating. reply uses buf[:0] and is valid until buf is used again. ok is false when
// the question needs Resolve. ok with an empty reply means to stay silent.
func (r *Router) Hit(buf, query []byte, from wire.Origin) (reply []byte, ok bool) {
	var q wire.Query
	switch q.Read(query) {
	case wire.Silent:
		return nil, true
	case wire.Reject:
		reply = q.AppendStatus(buf[:0], q.Rcode, wire.NoEDE)
		r.none.count(&q, reply, from, bySelf)
		return reply, true
	}
	if r.isNonce(&q) {
		return q.AppendTXT(buf[:0], q.Name()), true
	}
	s := r.find(&q)
	if s == nil || s.zone.empty {
		reply = q.AppendStatus(buf[:0], wire.Refused, wire.EDENotAuthority)
		counters := r.none
		if s != nil {
			counters = s.counters
		}
		counters.count(&q, reply, from, bySelf)
		return reply, true
	}
	reply, how, ok := s.zone.hit(buf[:0], &q, from)
	if ok {
		s.count(&q, reply, from, how)
	}
	return reply, ok
}

// Resolve answers query, blocking until it has an answer or its deadline has passed. It
// always has one, SERVFAIL at worst, unless silence is right. reply uses buf[:0].
func (r *Router) Resolve(ctx context.Context, buf, query []byte, from wire.Origin) []byte {
	var q wire.Query
	var s *site
	if q.Read(query) == wire.OK && !r.isNonce(&q) {
		s = r.find(&q)
	}
	if s == nil || s.zone.empty {
		reply, _ := r.Hit(buf, query, from)
		return reply
	}
	start := s.now()
	reply, how := s.zone.resolve(ctx, buf[:0], &q, from)
	s.count(&q, reply, from, how.late())
	s.observe(start)
	return reply
}

func (r *Router) isNonce(q *wire.Query) bool {
	return q.Class == wire.ClassCH && q.Type == wire.TypeTXT && r.nonce != nil && bytes.Equal(q.Name(), r.nonce)
}

// Close ends all background work of the router's zones and returns when it has ended.
// Queries that are under way still get their answers. Zones that another router serves
// too must be closed with the last of them.
func (r *Router) Close() {
	for _, s := range r.sites {
		s.zone.Close()
	}
}
