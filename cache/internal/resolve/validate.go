package resolve

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

const (
	maxServFail = 5 * time.Minute // RFC 2308 section 7.1
	maxTTL      = 1<<31 - 1       // seconds, RFC 2181 section 8
)

// Validate returns all problems joined.
func (c ZoneConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	names := func(what string, list []string) {
		for _, n := range list {
			if _, err := wire.ParseName(n); err != nil {
				bad("%s: %w", what, err)
			}
		}
	}
	if len(c.Names) == 0 {
		bad("no zone name")
	}
	names("zone", c.Names)
	names("cache zones", c.Cache.Zones)
	names("cache disable success", c.Cache.DisableSuccess)
	names("cache disable denial", c.Cache.DisableDenial)
	names("search_cut", c.SearchCut)
	for _, r := range c.Routes {
		names("forward from", []string{r.From})
		names("forward except", r.Except)
		if r.Upstream == nil {
			bad("forward %s: no upstream", r.From)
		}
	}
	if c.BufSize != 0 && (c.BufSize < 512 || c.BufSize > 4096) {
		bad("bufsize %d: must be from 512 to 4096", c.BufSize)
	}
	if c.Timeout < 0 || c.MaxInflight < 0 || c.MaxRefresh < 0 {
		bad("timeout and limits must not be negative")
	}
	for i, r := range c.Rewrites {
		if _, err := newRule(r); err != nil {
			bad("rewrite rule %d: %w", i+1, err)
		}
	}
	errs = append(errs, c.Cache.validate())
	return errors.Join(errs...)
}

func (c CacheConfig) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, b := range []struct {
		what string
		TTLBounds
	}{{"success", c.Success}, {"denial", c.Denial}} {
		if b.Max < 0 || b.Min < 0 || b.Max > maxTTL*time.Second || b.Min > maxTTL*time.Second {
			bad("cache %s: TTL bounds must be from 0 to %d seconds", b.what, maxTTL)
		}
	}
	if c.ServFail > maxServFail {
		bad("cache servfail %s: at most %s", c.ServFail, maxServFail)
	}
	if p := c.Prefetch; p.Amount < 0 || p.Gap < 0 || p.Percent < 0 || p.Percent > 90 {
		bad("cache prefetch %d %s %d%%: out of range", p.Amount, p.Gap, p.Percent)
	}
	if s := c.Stale; s.For < 0 || s.VerifyTimeout < 0 || s.TTL < 0 || s.Recheck < 0 || s.TTL > maxTTL*time.Second {
		bad("cache serve_stale: out of range")
	}
	return errors.Join(errs...)
}

func (c ZoneConfig) withDefaults() ZoneConfig {
	c.BufSize = cmp.Or(c.BufSize, wire.EDNSSize)
	c.Timeout = cmp.Or(c.Timeout, 4500*time.Millisecond)
	c.MaxInflight = cmp.Or(c.MaxInflight, 4096)
	c.MaxRefresh = cmp.Or(c.MaxRefresh, 64)
	c.Cache.Success.Max = cmp.Or(c.Cache.Success.Max, time.Hour)
	c.Cache.Denial.Max = cmp.Or(c.Cache.Denial.Max, 30*time.Minute)
	c.Cache.ServFail = cmp.Or(c.Cache.ServFail, 5*time.Second)
	c.Cache.Prefetch.Gap = cmp.Or(c.Cache.Prefetch.Gap, time.Minute)
	c.Cache.Prefetch.Percent = cmp.Or(c.Cache.Prefetch.Percent, 10)
	c.Cache.Stale.VerifyTimeout = cmp.Or(c.Cache.Stale.VerifyTimeout, 1800*time.Millisecond)
	c.Cache.Stale.TTL = cmp.Or(c.Cache.Stale.TTL, 30*time.Second)
	c.Cache.Stale.Recheck = cmp.Or(c.Cache.Stale.Recheck, 5*time.Second)
	return c
}
