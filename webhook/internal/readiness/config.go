package readiness

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config says when caches count as ready. The zero value takes every default.
type Config struct {
	// On is the fraction of usable nodes from which on Pods are injected. Zero: 0.95.
	On float64
	// Off is the fraction below which injecting stops. Zero: 0.80.
	Off float64
	// Grace is how long a node counts as usable after its cache was last ready in the same boot. Zero: 5 minutes,
	// negative: none. While a cache is replaced the kernel hands its questions to the cluster DNS, and the address and
	// that way stay set up until a reboot; so a rolling update is no reason to stop injecting. A cache that does not
	// come back is: the node then serves nothing from memory.
	Grace time.Duration
}

func (c Config) withDefaults() Config {
	if c.On == 0 {
		c.On = 0.95
	}
	if c.Off == 0 {
		c.Off = 0.80
	}
	if c.Grace == 0 {
		c.Grace = 5 * time.Minute
	}
	return c
}

// Validate lists every problem of c.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if math.IsNaN(c.On) || c.On < 0 || c.On > 1 {
		errs = append(errs, fmt.Errorf("ready fraction to go on %v: want more than 0, at most 1", c.On))
	}
	if math.IsNaN(c.Off) || c.Off < 0 || c.Off > c.On {
		errs = append(errs, fmt.Errorf("ready fraction to go off %v: want more than 0, at most that to go on (%v)", c.Off, c.On))
	}
	return errors.Join(errs...)
}
