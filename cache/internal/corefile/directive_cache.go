package corefile

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// minCapacity is the least number of entries; CoreDNS raises what is below it.
const minCapacity = 1024

// defaultCache is what cache alone means. It is CoreDNS's but for the least TTL: CoreDNS keeps every answer 5 s, also one whose
// TTL says that it must not be used again (RFC 1035 s3.2.1, RFC 2308 s5); here there is a floor only where one is written.
func defaultCache() *Cache {
	return &Cache{
		Success:  CacheClass{Capacity: 9984, MaxTTL: time.Hour},
		Denial:   CacheClass{Capacity: 9984, MaxTTL: 30 * time.Minute},
		Prefetch: Prefetch{Duration: time.Minute, Percentage: 10},
		ServFail: 5 * time.Second,
	}
}

// cache [TTL] [ZONES...] { … }
func (d *directive) cache() *Cache {
	c := defaultCache()
	args := d.args
	if len(args) > 0 {
		if _, err := strconv.Atoi(args[0].text); err == nil {
			ttl := d.seconds(args[0], "TTL", 1)
			c.Success.MaxTTL, c.Denial.MaxTTL = ttl, ttl
			args = args[1:]
		} else if args[0].text != "" && isDigit(args[0].text[0]) && !strings.ContainsAny(args[0].text, "./") {
			d.failAt(args[0], "TTL %q; allowed: a whole number of seconds, from 1", args[0].text)
			args = args[1:]
		}
	}
	c.Zones = d.names(args)
	for _, sub := range d.sub {
		d.cacheOption(c, sub)
	}
	for _, class := range []*CacheClass{&c.Success, &c.Denial} {
		class.MinTTL = min(class.MinTTL, class.MaxTTL) // as in CoreDNS the ceiling wins over the floor
		class.Capacity = max(class.Capacity, minCapacity)
	}
	if c.PreferPositive && c.ServeStale == nil {
		d.fail("serve_stale_policy needs serve_stale")
	}
	return c
}

func (d *directive) cacheOption(c *Cache, sub *directive) {
	switch name := d.option(sub); name {
	case "success":
		sub.cacheClass(&c.Success, name)
	case "denial":
		sub.cacheClass(&c.Denial, name)
	case "prefetch":
		sub.prefetch(&c.Prefetch)
	case "serve_stale":
		c.ServeStale = sub.serveStale()
	case "serve_stale_policy":
		if sub.want(1, 1, "serve_stale_policy prefer_positive") {
			sub.choice(sub.args[0], name, "prefer_positive")
			c.PreferPositive = true
		}
	case "servfail":
		if sub.want(1, 1, "servfail with a duration") {
			c.ServFail = sub.duration(sub.args[0], name, 0, 5*time.Minute) // RFC 2308 s7.1
		}
	case "disable":
		if !sub.want(1, -1, "disable success|denial [ZONES...]") {
			return
		}
		zones := []string{"."}
		if len(sub.args) > 1 {
			zones = sub.names(sub.args[1:])
		}
		if sub.choice(sub.args[0], name, "success", "denial") == "success" {
			c.Success.Disabled = zones
		} else {
			c.Denial.Disabled = zones
		}
	case "keepttl":
		sub.want(0, 0, "no argument")
		c.KeepTTL = true
	default:
		d.unknownOption(sub, name, "success", "denial", "prefetch", "serve_stale", "serve_stale_policy", "servfail", "disable", "keepttl")
	}
}

// cacheClass reads CAPACITY [TTL [MINTTL]].
func (d *directive) cacheClass(c *CacheClass, name string) {
	if !d.want(1, 3, name+" CAPACITY [TTL [MINTTL]]") {
		return
	}
	c.Capacity = d.integer(d.args[0], "capacity", 0, 1<<26)
	if len(d.args) > 1 {
		c.MaxTTL = d.seconds(d.args[1], "TTL", 1)
	}
	if len(d.args) > 2 {
		c.MinTTL = d.seconds(d.args[2], "minimum TTL", 0)
	}
}

// prefetch reads AMOUNT [DURATION [PERCENTAGE%]].
func (d *directive) prefetch(p *Prefetch) {
	if !d.want(1, 3, "prefetch AMOUNT [DURATION [PERCENTAGE%]]") {
		return
	}
	p.Amount = d.integer(d.args[0], "prefetch amount", 0, math.MaxInt32)
	if len(d.args) > 1 {
		p.Duration = d.duration(d.args[1], "prefetch duration", 0, math.MaxInt64)
	}
	if len(d.args) > 2 {
		pct, ok := strings.CutSuffix(d.args[2].text, "%")
		n, err := strconv.Atoi(pct)
		if !ok || err != nil || n < 10 || n > 90 {
			d.failAt(d.args[2], "prefetch percentage %q; allowed: 10%% to 90%%", d.args[2].text)
		}
		p.Percentage = n
	}
}

// serveStale reads [DURATION [immediate [TTL [RECHECK]] | verify [TIMEOUT [TTL [RECHECK]]]]]. What is not given, or given as 0,
// is what RFC 8767 recommends (s4: TTL 30 s, never 0; s5: 1.8 s for the client, some pause after a failure); CoreDNS takes 0.
func (d *directive) serveStale() *ServeStale {
	s := &ServeStale{For: time.Hour}
	defer func() {
		if s.Verify && s.VerifyTimeout == 0 {
			s.VerifyTimeout = 1800 * time.Millisecond
		}
		if s.TTL == 0 {
			s.TTL = 30 * time.Second
		}
		if s.Recheck == 0 {
			s.Recheck = 5 * time.Second
		}
	}()
	d.want(0, 5, "serve_stale [DURATION [immediate|verify …]]")
	args := d.args
	next := func() (w word, ok bool) {
		if len(args) == 0 {
			return word{}, false
		}
		w, args = args[0], args[1:]
		return w, true
	}
	if w, ok := next(); ok {
		s.For = d.duration(w, "serve_stale duration", 0, math.MaxInt64)
	}
	if w, ok := next(); ok {
		s.Verify = d.choice(w, "serve_stale mode", "immediate", "verify") == "verify"
	}
	if s.Verify {
		if w, ok := next(); ok {
			s.VerifyTimeout = d.duration(w, "verify timeout", 0, math.MaxInt64)
		}
	}
	if w, ok := next(); ok {
		if s.TTL = d.duration(w, "stale TTL", 0, math.MaxInt32*time.Second); s.TTL%time.Second != 0 {
			d.failAt(w, "stale TTL %q; allowed: whole seconds", w.text)
		}
	}
	if w, ok := next(); ok {
		s.Recheck = d.duration(w, "recheck pause", 0, 5*time.Minute)
	}
	if w, ok := next(); ok {
		d.failAt(w, "serve_stale: %q is one too many", w.text)
	}
	return s
}
