package resolve

import (
	"context"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// maxAliases bounds how many answers made on the spot may follow one another.
const maxAliases = 8

// aliasDepth is the key of their number so far in a context.
type aliasDepth struct{}

// follow completes a reply that was made on the spot and is an alias, as templates make
// them: stub resolvers do not ask for the rest themselves (RFC 1034 section 5.2.2). The
// name at its end is looked up as if a client had asked for it, in whatever zone that is.
// An alias that leads where nobody is to be asked stays as it is.
func (z *Zone) follow(ctx context.Context, question []byte, variant wire.Variant, from wire.Origin, reply []byte) ([]byte, error) {
	r := z.router.Load()
	end, ok := wire.AliasEnd(question, reply)
	if r == nil || !ok {
		return reply, nil
	}
	target := append(end, question[len(question)-4:]...)
	query := wire.AppendUpstream(nil, target, variant)
	depth, _ := ctx.Value(aliasDepth{}).(int)
	rest := wire.AppendError(nil, query, wire.ServFail)
	if depth < maxAliases {
		rest = r.lookup(context.WithValue(ctx, aliasDepth{}, depth+1), query, from)
	}
	if rest == nil {
		return reply, nil
	}
	return wire.AppendRest(nil, question, reply, target, rest)
}

// lookup returns the whole reply to a query of our own, on behalf of the client at from;
// nil if there is nobody to ask.
func (r *Router) lookup(ctx context.Context, query []byte, from wire.Origin) []byte {
	var q wire.Query
	if q.Read(query) != wire.OK {
		return wire.AppendError(nil, query, wire.ServFail)
	}
	s := r.find(&q)
	if s == nil || s.zone.empty {
		return nil
	}
	whole := wire.Origin{Client: from.Client, Transport: wire.TCP, Lane: from.Lane}
	reply, _, ok := s.zone.hit(nil, &q, whole)
	if !ok {
		reply, _ = s.zone.resolve(ctx, nil, &q, whole)
	}
	if reply[3]&15 == byte(wire.ServFail) && s.zone.route(s.zone.rewrite(q.Question()).name()) == nil {
		return nil
	}
	return reply
}
