// Package wire owns the bytes of DNS messages: it reads a query in place, keeps an
// answer packed and issues it again for another client.
//
// It knows nothing of sockets, time or policy: what a TTL has aged, how large a reply
// may be and which answer is to be given are arguments.
//
// A server reads a query with [Read]; when the verdict is [OK] it looks the answer up
// by [Query.Question] and [Query.Variant] and writes the reply with
// [Answer.AppendReply]. Neither allocates. A reply from upstream becomes an [Answer]
// through [NewAnswer]: a walk over the bytes when they are laid out as nearly all
// servers lay them out, and a round trip through miekg/dns otherwise.
package wire
