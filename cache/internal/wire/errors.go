package wire

import "errors"

// Errors that an upstream exchange ends with; they decide what the client is told and
// whether the failure may be remembered.
var (
	// ErrBusy: the upstream's limit of concurrent queries is reached. Never cached.
	ErrBusy = errors.New("too many upstream queries in flight")
	// ErrNoUpstream: there is no upstream to ask, or none that is healthy and failfast is set.
	ErrNoUpstream = errors.New("no upstream available")
	// ErrLoop: the upstream sends queries back to this server.
	ErrLoop = errors.New("forwarding loop")
	// ErrClosed: the way to the upstream was closed by this side, as at a reload. Never cached.
	ErrClosed = errors.New("closed")
	// ErrMalformed: a message that cannot be parsed.
	ErrMalformed = errors.New("malformed message")
	// ErrMismatch: a reply to another question than the one asked.
	ErrMismatch = errors.New("reply does not match the question")
)
