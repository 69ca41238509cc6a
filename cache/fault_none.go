//go:build !nodedns_faults

package main

import "github.com/nodedns/nodedns/cache/internal/listen"

// faulty is h itself: only a build for tests has faults.
func faulty(h listen.Handler) listen.Handler { return h }
