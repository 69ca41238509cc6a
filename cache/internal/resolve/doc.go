// Package resolve owns policy and time: which zone a question belongs to, whether the
// answer at hand may still be given, what is asked upstream and how long the result is
// good for.
//
// A [Router] stands behind one address and port and finds the [Zone] of a question, the
// longest match label by label. Router.Hit answers from memory without blocking or
// allocating; what it cannot answer goes to Router.Resolve, which may ask upstream, once
// for each question however many clients wait. Neither writes to a socket: replies are
// returned.
//
// A Router and its Zones never change. On reload new ones are built and the old Router
// is closed; what survives is the [store.Store], which the caller passes on where the
// zone stayed the same, and the [Metrics].
package resolve
