package resolve

import (
	"context"
	"log/slog"
	"time"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// Upstream answers what is not known here.
type Upstream interface {
	// Exchange sends query, a packed message whose ID does not matter, and returns the
	// reply packed, with any ID, for the caller to keep. The reply is to the question
	// asked (RFC 5452 section 9.1); it has TC only if TCP was not to be had. Errors are
	// those of package wire, of ctx, or of the transport. query is not used any more
	// after the return. Exchange may be called from many goroutines.
	Exchange(ctx context.Context, query []byte) (reply []byte, err error)
}

// Local makes answers on the spot: hosts, template, whoami.
type Local interface {
	// Answer returns the packed reply to query, a packed message with one question in
	// lower case, or nil if the question is for the next in line. keep tells whether the
	// answer is the same for all clients and may be cached; otherwise it is only right
	// for the client at from. from is the zero value when a cached answer is renewed.
	Answer(query []byte, from wire.Origin) (reply []byte, keep bool)
}

// Route is one way out of a zone.
type Route struct {
	// From is the name whose subtree goes this way; "." means everything.
	From string
	// Except are names whose subtrees do not.
	Except []string
	// Upstream is asked.
	Upstream Upstream
}

// ZoneConfig is what a server block says about the zones it is for.
type ZoneConfig struct {
	// Names are the zones, in presentation format. At least one.
	Names []string
	// Store keeps the answers. Nil means that nothing is cached. It may be that of an
	// older Zone.
	Store *store.Store
	// Cache is the policy for what goes into Store.
	Cache CacheConfig
	// Local are asked in this order before any upstream.
	Local []Local
	// Routes are tried in this order; the first that fits is taken.
	Routes []Route
	// Last is asked if no route fits. Nil means SERVFAIL, and REFUSED in a zone that has
	// neither Routes nor Local.
	Last Local
	// Rewrites change the name that is looked for; the client does not see it.
	Rewrites []Rewrite
	// LoadBalance turns the order of addresses and mail exchangers from reply to reply.
	LoadBalance bool
	// BufSize is the largest reply by UDP, in octets, from 512 to 4096. Zero means
	// wire.EDNSSize.
	BufSize int
	// SearchCut are the cluster domains, in presentation format, in which questions that
	// only search lists bring about are answered from one denial; see cut.go. None means
	// that this is not done.
	SearchCut []string
	// Timeout is how long a client may have to wait for its reply. Zero means 4.5 s:
	// less than the 5 s of the usual stub resolvers.
	Timeout time.Duration
	// MaxInflight is the most distinct questions on their way upstream at a time; more
	// are answered at once, from stale data or with SERVFAIL. Zero means 4096.
	MaxInflight int
	// MaxRefresh is the most of them that nobody waits for: prefetch and the renewal of
	// stale answers. Zero means 64.
	MaxRefresh int
	// QueryLog is called after each query, by who answers it, so it must not block. Nil
	// means none; not nil costs speed.
	QueryLog func(LogRecord)
	// ErrorLog gets a record for each question that failed. Nil means none.
	ErrorLog *slog.Logger
	// Log gets what must never happen: a panic where no client waits. Nil means none.
	Log *slog.Logger
}

// CacheConfig is the cache directive.
type CacheConfig struct {
	// Zones restrict caching to names in them. None means no restriction.
	Zones []string
	// Success and Denial bound the TTLs of answers and of denials of existence.
	Success, Denial TTLBounds
	// ServFail is how long a failure is remembered (RFC 9520). Zero means 5 s, negative
	// not at all; at most 5 minutes (RFC 2308 section 7.1).
	ServFail time.Duration
	// Prefetch renews answers in use before they end.
	Prefetch PrefetchConfig
	// Stale gives out answers that have ended (RFC 8767).
	Stale StaleConfig
	// DisableSuccess and DisableDenial are names in whose subtrees that kind of answer
	// is not kept; "." means everywhere.
	DisableSuccess, DisableDenial []string
	// KeepTTL gives out TTLs as they came instead of what is left of them.
	KeepTTL bool
}

// TTLBounds bound a lifetime.
type TTLBounds struct {
	// Max is the longest. Zero means 3600 s for success and 1800 s for denial.
	Max time.Duration
	// Min is the shortest, as asked for explicitly: MINTTL of the directive. Zero means
	// no floor. CoreDNS has one of 5 s unasked, which reuses answers that say they must
	// not be (RFC 1035 section 3.2.1, RFC 2308 section 5).
	Min time.Duration
}

// PrefetchConfig says which answers are renewed before they end.
type PrefetchConfig struct {
	// Amount is how many uses without a gap make an answer popular. Zero means no prefetch.
	Amount int
	// Gap is the longest time between two such uses. Zero means 1 minute.
	Gap time.Duration
	// Percent is the part of the lifetime that is left when an answer is renewed. Zero
	// means 10.
	Percent int
}

// StaleConfig says what may be done with answers that have ended.
type StaleConfig struct {
	// For is how long after its end an answer may be given. Zero means never.
	For time.Duration
	// Verify asks upstream first and gives a stale answer only when that fails; otherwise
	// the stale answer is given at once and renewed behind it.
	Verify bool
	// VerifyTimeout is how long to wait for upstream before the stale answer is given.
	// Zero means 1.8 s (RFC 8767 section 5).
	VerifyTimeout time.Duration
	// TTL is that of records in a stale answer. Zero means 30 s (RFC 8767 section 4).
	TTL time.Duration
	// Recheck is how long to leave an upstream alone after it failed to renew an
	// answer. Zero means 5 s.
	Recheck time.Duration
	// PreferPositive keeps an answer that may be given, stale or not, when upstream says
	// that there is none (serve_stale_policy prefer_positive).
	PreferPositive bool
}
