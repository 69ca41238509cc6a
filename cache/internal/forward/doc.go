// Package forward asks the upstreams: it owns their sockets, picks one for each
// query, tries again where that helps, watches their health and finds loops. What it
// needs to know of a message behind its question, package wire tells. It edits the ID of
// a query and, for an upstream that does not take EDNS, leaves out the OPT record.
//
// A Forward is one `forward` directive:
//
//	f, err := forward.New(cfg, log, metrics)
//	go f.Run(ctx)                          // health, resolv.conf, loop probes
//	reply, err := f.Exchange(ctx, query)   // from many goroutines
//
// When ctx ends, Run waits for the exchanges under way and closes everything.
package forward
