// Package forward asks the upstreams: it owns their sockets, picks one for each
// query, tries again where that helps, watches their health and finds loops. It
// never reads more of a message than its header and question and never edits
// more than its ID.
//
// A Forward is one `forward` directive:
//
//	f, err := forward.New(cfg, log, metrics)
//	go f.Run(ctx)                          // health, resolv.conf, loop probes
//	reply, err := f.Exchange(ctx, query)   // from many goroutines
//
// When ctx ends, Run waits for the exchanges under way and closes everything.
package forward
