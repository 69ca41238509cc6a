package store

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// DefaultCapacity is the number of answers of one kind kept when nothing else is said;
// CoreDNS has the same.
const DefaultCapacity = 9984

// meanSize is how many octets an answer may have on average before the octets and not
// the number of answers bound the store: three times what is usual.
const meanSize = 1024

// Config says how much a [Store] may hold.
type Config struct {
	// Success and Denial are the most answers of either kind. Zero means DefaultCapacity.
	Success, Denial int
	// Bytes is the most octets that all answers may take together. Zero means 1024 for
	// each answer of the two capacities.
	Bytes int64
	// Stale is how long after its end a lifetime may still be of use, and so the entry
	// be kept in preference to a fresh one that nobody asks for. Zero means not at all.
	Stale time.Duration
}

// Validate returns all problems joined.
func (c Config) Validate() error {
	var errs []error
	if c.Success < 0 || c.Denial < 0 {
		errs = append(errs, fmt.Errorf("capacity %d for success, %d for denial: must not be negative", c.Success, c.Denial))
	}
	if c.Bytes < 0 {
		errs = append(errs, fmt.Errorf("%d bytes: must not be negative", c.Bytes))
	}
	if c.Stale < 0 {
		errs = append(errs, fmt.Errorf("stale for %s: must not be negative", c.Stale))
	}
	return errors.Join(errs...)
}

// MaxBytes returns Bytes, or what zero there means.
func (c Config) MaxBytes() int64 { return c.withDefaults().Bytes }

func (c Config) withDefaults() Config {
	c.Success = cmp.Or(c.Success, DefaultCapacity)
	c.Denial = cmp.Or(c.Denial, DefaultCapacity)
	c.Bytes = cmp.Or(c.Bytes, int64(c.Success+c.Denial)*meanSize)
	return c
}
