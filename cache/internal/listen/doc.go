// Package listen owns the cache's server sockets: buffers, framing, limits and
// the loops that read queries and send replies. It knows nothing of caching or
// forwarding; what a packet means is its Handler's business.
//
// An Endpoint is one address and port, served over UDP and TCP:
//
//	ep, err := listen.Listen(listen.Config{Addr: addr}, router, log, metrics)
//	...
//	err = ep.Run(ctx) // serves until ctx ends, then drains
//
// On reload, Swap puts a new Handler in place between two queries. A second
// Endpoint may be bound to an address while an older one still drains.
package listen
