// Package store owns the memory of the cache: which answers are kept, for how long and
// which one goes when there is no room.
//
// It knows nothing of policy: how long an answer lives is an argument, and what an
// expired one is good for is the caller's affair. A [Store] keeps two kinds of answers,
// each with a capacity of its own, under one index, so that a question has one entry at
// most. [Store.Get] takes no lock and does not allocate, whatever the number of entries.
package store
