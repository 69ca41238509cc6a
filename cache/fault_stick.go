//go:build nodedns_faults

package main

import (
	"bytes"

	"github.com/nodedns/nodedns/cache/internal/listen"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// faulty is h, except that the worker which reads a question for stick.nodedns-fault. hangs for good. The failover tests
// of the node room build the cache with this, to see what becomes of a node whose cache has a stuck worker.
func faulty(h listen.Handler) listen.Handler { return sticking{h} }

type sticking struct{ listen.Handler }

func (s sticking) Hit(buf, query []byte, from wire.Origin) ([]byte, bool) {
	if bytes.Contains(query, []byte("\x05stick\x0dnodedns-fault\x00")) {
		select {}
	}
	return s.Handler.Hit(buf, query, from)
}
