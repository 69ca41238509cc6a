package store

// queue keeps entries in the order of arrival and picks which one goes: SIEVE (Zhang et
// al., NSDI 2024). A hand moves from the oldest entry to the newest, forgives those that
// were asked for since it last passed, and takes the first that was not. A hit costs a
// flag that is mostly set already, where LRU needs a lock; and unlike CLOCK an entry
// that is forgiven keeps its place, so a flood of names asked once passes through
// without washing out the rest.
type queue struct {
	newest, oldest, hand *Entry
}

func (q *queue) push(e *Entry) {
	e.older = q.newest
	if q.newest != nil {
		q.newest.newer = e
	} else {
		q.oldest = e
	}
	q.newest = e
}

func (q *queue) remove(e *Entry) {
	if q.hand == e {
		q.hand = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		q.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		q.oldest = e.newer
	}
	e.newer, e.older = nil, nil
}

// replace puts e into the place of old.
func (q *queue) replace(old, e *Entry) {
	e.newer, e.older = old.newer, old.older
	if e.newer != nil {
		e.newer.older = e
	} else {
		q.newest = e
	}
	if e.older != nil {
		e.older.newer = e
	} else {
		q.oldest = e
	}
	if q.hand == old {
		q.hand = e
	}
	old.newer, old.older = nil, nil
}

// victim returns the entry that goes next, or nil if there is none but spared. A round
// may begin in the middle, so it takes two to have seen all flags taken down; only
// readers that set them again as fast can make a third necessary, which takes whatever
// comes.
func (q *queue) victim(spared *Entry, dead func(*Entry) bool) *Entry {
	e := q.hand
	for wraps := 0; wraps <= 3; {
		if e == nil {
			e = q.oldest
			wraps++
			continue
		}
		if e != spared {
			if wraps == 3 || dead(e) || !e.visited.Load() {
				q.hand = e.newer
				return e
			}
			e.visited.Store(false)
		}
		e = e.newer
	}
	return nil
}
