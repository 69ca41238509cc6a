// Package readiness knows how the node caches stand: which Node has a cache that answers, and whether enough of the
// nodes where a Pod may land have one. It owns that picture and the breaker; it reads Nodes and the cache's Pods through
// informers, asks no API on the way of a decision, and knows nothing of DNS.
//
//	tracker, err := readiness.New(readiness.Config{}, observer)
//	readiness.Feed(ctx, factory…, tracker)
//	go tracker.Run(ctx)
//	state := tracker.State(pod.Placement)
//
// While the API server is away the last known picture stands: the informers keep it.
package readiness
