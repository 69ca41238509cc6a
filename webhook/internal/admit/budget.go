package admit

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// The bodies in memory at a time are bounded, so that whoever can reach the port cannot fill it: ordinary reviews and
// large ones apart, lest a few of these, sent slowly, keep the others waiting.
const (
	largeFrom   = 64 << 10
	smallBudget = 16 << 20
	largeBudget = 16 << 20
	// budgetPatience is how long a review may wait; the API server gives up after two seconds.
	budgetPatience = time.Second
)

type budget struct{ small, large *semaphore.Weighted }

func newBudget() budget {
	return budget{small: semaphore.NewWeighted(smallBudget), large: semaphore.NewWeighted(largeBudget)}
}

// acquire takes room for a body of that size; false if there was none in time. release gives it back.
func (b budget) acquire(ctx context.Context, size int64) bool {
	if b.of(size).TryAcquire(size) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, budgetPatience)
	defer cancel()
	return b.of(size).Acquire(ctx, size) == nil
}

func (b budget) release(size int64) { b.of(size).Release(size) }

func (b budget) of(size int64) *semaphore.Weighted {
	if size >= largeFrom {
		return b.large
	}
	return b.small
}
