package main

import (
	"log/slog"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/resolve"
)

// zoneConfig translates what a block says about its answers, but for names, store and routes.
func (b *builder) zoneConfig(block *corefile.Block) (resolve.ZoneConfig, error) {
	cfg := resolve.ZoneConfig{
		Cache:       cacheConfig(block.Cache),
		Rewrites:    rewrites(block.Rewrites),
		LoadBalance: block.LoadBalance != nil,
		BufSize:     block.BufSize,
		SearchCut:   searchCut(block),
		QueryLog:    queryLog(block.Log, b.stdout),
		ErrorLog:    b.errors(block.Errors),
		Log:         b.log,
	}
	var err error
	cfg.Local, cfg.Last, err = b.locals(block)
	return cfg, err
}

func cacheConfig(c *corefile.Cache) resolve.CacheConfig {
	if c == nil {
		return resolve.CacheConfig{}
	}
	cfg := resolve.CacheConfig{
		Zones:          c.Zones,
		Success:        resolve.TTLBounds{Max: c.Success.MaxTTL, Min: c.Success.MinTTL},
		Denial:         resolve.TTLBounds{Max: c.Denial.MaxTTL, Min: c.Denial.MinTTL},
		ServFail:       c.ServFail,
		Prefetch:       resolve.PrefetchConfig{Amount: c.Prefetch.Amount, Gap: c.Prefetch.Duration, Percent: c.Prefetch.Percentage},
		DisableSuccess: c.Success.Disabled,
		DisableDenial:  c.Denial.Disabled,
		KeepTTL:        c.KeepTTL,
	}
	if cfg.ServFail == 0 {
		cfg.ServFail = -1 // not at all; zero would mean the default there
	}
	if s := c.ServeStale; s != nil {
		cfg.Stale = resolve.StaleConfig{
			For: s.For, Verify: s.Verify, VerifyTimeout: s.VerifyTimeout, TTL: s.TTL, Recheck: s.Recheck,
			PreferPositive: c.PreferPositive,
		}
	}
	return cfg
}

func rewrites(rules []*corefile.Rewrite) []resolve.Rewrite {
	kinds := map[string]resolve.RewriteMatch{
		"exact": resolve.RewriteExact, "prefix": resolve.RewritePrefix, "suffix": resolve.RewriteSuffix,
		"substring": resolve.RewriteSubstring, "regex": resolve.RewriteRegex,
	}
	var out []resolve.Rewrite
	for _, r := range rules {
		rule := resolve.Rewrite{Match: kinds[r.Match], From: r.From, To: r.To, Continue: r.Continue, AnswerAuto: r.Auto}
		for _, a := range r.Answers {
			p := resolve.RewritePattern{From: a.From, To: a.To}
			if a.Value {
				rule.AnswerValue = append(rule.AnswerValue, p)
			} else {
				rule.AnswerName = append(rule.AnswerName, p)
			}
		}
		out = append(out, rule)
	}
	return out
}

// searchCut gives the zones whose search domains are cut: those named, else the block's own but for reverse zones, which
// nobody has in a search list.
func searchCut(block *corefile.Block) []string {
	if block.SearchCut == nil {
		return nil
	}
	if len(block.SearchCut.Zones) > 0 {
		return block.SearchCut.Zones
	}
	var out []string
	for _, z := range block.Zones {
		if z.Name != "." && !strings.HasSuffix(z.Name, "in-addr.arpa.") && !strings.HasSuffix(z.Name, "ip6.arpa.") {
			out = append(out, z.Name)
		}
	}
	return out
}

func rcodeNumber(name string) int { return dns.StringToRcode[name] }

// errors gives the log of a block's failed questions; without the directive they are not logged.
func (b *builder) errors(e *corefile.Errors) *slog.Logger {
	if e == nil {
		return nil
	}
	limited := newLimiter(b.log.Handler())
	if len(e.Consolidate) == 0 {
		return slog.New(limited)
	}
	// Counted first and then limited, or the counts would be too low.
	return slog.New(newConsolidator(limited, b.log.Handler(), e.Consolidate))
}
