package corefile

import (
	"net/netip"
	"time"
)

// Options is what a Corefile may refer to beside its own text.
type Options struct {
	LocalIPs    []netip.Addr      // __PILLAR__LOCAL__DNS__: the cache's own addresses, in order; required for that placeholder
	ServerIPs   []netip.Addr      // __PILLAR__DNS__SERVER__: ClusterIPs bound besides; none: the placeholder is dropped
	ClusterDNS  []netip.Addr      // __PILLAR__CLUSTER__DNS__: where cluster names go; none: using the placeholder is an error
	Domain      string            // __PILLAR__DNS__DOMAIN__; default cluster.local
	ResolvConf  string            // __PILLAR__UPSTREAM__SERVERS__ when KubeDNS names none; default /etc/resolv.conf
	KubeDNS     KubeDNS           // stub domains and upstreams of the kube-dns ConfigMap
	Port        uint16            // port of a zone that names none, and of stub domains; default 53
	KeepUnknown bool              // leave __PILLAR__CLUSTER__DNS__ in place when ClusterDNS is empty (for a check away from the node)
	Hints       map[string]string // by placeholder: what to do when it has no value, for the error

	Env      func(string) (string, bool)  // environment variables; nil: none is set
	ReadFile func(string) ([]byte, error) // reads imported files; nil: os.ReadFile
}

// Config is a checked Corefile with every default filled in.
type Config struct {
	Blocks   []*Block
	Files    []string   // imported files, for whoever watches for changes
	Warnings []*Problem // not wrong, but worth a line in the log
}

// Block is one server block. A nil or zero field means that the directive is absent.
type Block struct {
	Pos   Pos
	Zones []Zone
	Bind  []Bind // none: all addresses of the host

	Errors      *Errors
	Log         []LogRule
	Cache       *Cache
	Forward     []*Forward
	Hosts       *Hosts
	Templates   []*Template
	Rewrites    []*Rewrite
	LoadBalance *LoadBalance
	Timeouts    *Timeouts
	Reload      *Reload
	Prometheus  *HTTP
	Health      *Health
	Ready       *Ready
	PProf       *PProf
	SearchCut   *SearchCut
	BufSize     int // largest UDP answer in octets; 0: absent
	Loop        bool
	Debug       bool
	WhoAmI      bool
}

// Zone is a zone a block serves.
type Zone struct {
	Name string // canonical: lower case, absolute, escaped as in a zone file
	Port uint16
}

// Bind is an address or an interface whose addresses are bound.
type Bind struct {
	Addr      netip.Addr // valid, or
	Interface string     // not empty
	Except    bool       // taken out again
}

// Errors logs failed queries; Consolidate groups them.
type Errors struct {
	Stacktrace  bool
	Consolidate []Consolidate
}

// Consolidate counts the errors that match and logs one line each Period.
type Consolidate struct {
	Period    time.Duration
	Pattern   string // regular expression
	Level     string // warning, error, info, debug
	ShowFirst bool
}

// LogRule logs queries.
type LogRule struct {
	Names   []string // canonical
	Format  string   // with {…} placeholders; empty: the common log format
	Classes []string // all, denial, error, success
}

// Cache is the cache of a block.
type Cache struct {
	Zones          []string // names below which it caches; none: all of the block
	Success        CacheClass
	Denial         CacheClass
	Prefetch       Prefetch
	ServeStale     *ServeStale
	PreferPositive bool          // serve_stale_policy prefer_positive
	ServFail       time.Duration // how long SERVFAIL is kept; 0: not at all; default 5 s
	KeepTTL        bool
}

// CacheClass sets the bounds for one kind of answer.
type CacheClass struct {
	Capacity int           // entries; default 9984
	MaxTTL   time.Duration // default 1 h for success, 30 min for denial
	MinTTL   time.Duration // default none
	Disabled []string      // names below which nothing of this kind is kept, canonical
}

// Prefetch renews popular entries before they expire.
type Prefetch struct {
	Amount     int           // questions that make an entry popular; 0: off
	Duration   time.Duration // the longest gap between them; default 1 min
	Percentage int           // of the TTL left when it happens; default 10
}

// ServeStale serves expired entries.
type ServeStale struct {
	For           time.Duration // after expiry; default 1 h
	Verify        bool          // ask upstream first
	VerifyTimeout time.Duration // how long; default 1.8 s
	TTL           time.Duration // of the stale answer, in whole seconds; default 30 s
	Recheck       time.Duration // pause after a failed refresh; default 5 s
}

// Forward sends names below From to Targets.
type Forward struct {
	Pos           Pos
	From          []string // canonical; several for a network that is no octet wide
	Targets       []Target
	Except        []string // canonical
	ForceTCP      bool
	PreferUDP     bool
	Policy        string        // random, round_robin or sequential; default random
	Expire        time.Duration // idle life of a connection; default 10 s
	MaxIdleConns  int           // connections kept to an upstream; 0: our own choice
	ReadTimeout   time.Duration // per try; default 2 s
	MaxFails      int           // failed health checks until down; 0: never; default 2
	MaxConcurrent int           // queries in flight; 0: no limit
	HealthCheck   HealthCheck
	TLS           *TLS
	TLSServerName string
	FailFast      bool     // SERVFAIL at once when all upstreams are down
	Failover      []string // rcodes that make it try the next upstream
}

// Target is an upstream, or a file in the form of resolv.conf that lists some.
type Target struct {
	Addr        netip.AddrPort
	TLS         bool
	ServerName  string // for TLS: what follows % in the address
	File        string
	Placeholder string // only with Options.KeepUnknown
}

// HealthCheck asks a failed upstream until it answers.
type HealthCheck struct {
	Interval time.Duration // default 500 ms
	NoRec    bool
	Domain   string // canonical; default the root
}

// TLS names PEM files; all may be empty.
type TLS struct{ Cert, Key, CA string }

// Hosts answers from a hosts file and from lines of its own.
type Hosts struct {
	Pos                    Pos
	File                   string   // default /etc/hosts
	Zones                  []string // canonical; none: all of the block
	Inline                 []string // lines in the form of a hosts file
	TTL                    time.Duration
	Reload                 time.Duration // 0: never
	NoReverse              bool
	Fallthrough            []string // canonical; nil: none
	FallthroughUnsupported bool
}

// Template answers from Go templates.
type Template struct {
	Pos         Pos
	Class, Type string
	Zones       []string // canonical; none: all of the block
	Match       []string // regular expressions; none: any name
	Answer      []string
	Additional  []string
	Authority   []string
	Rcode       string // default NOERROR
	EDE         *EDE
	Fallthrough []string // canonical; nil: none
}

// EDE is an extended DNS error, RFC 8914.
type EDE struct {
	Code uint16
	Text string
}

// Rewrite changes the name of a question.
type Rewrite struct {
	Pos      Pos
	Continue bool
	Match    string // exact, prefix, suffix, substring or regex
	From, To string
	Auto     bool // answer auto
	Answers  []AnswerRewrite
}

// AnswerRewrite changes names in the answer.
type AnswerRewrite struct {
	Value    bool // the data rather than the owner
	From, To string
}

// LoadBalance shuffles address records.
type LoadBalance struct {
	Policy string // round_robin
}

// Timeouts of clients' TCP connections. Zero: the default.
type Timeouts struct {
	Read, Write, Idle time.Duration
}

// Reload watches the files.
type Reload struct {
	Interval time.Duration // default 30 s
	Jitter   time.Duration // default 15 s, at most half the interval
}

// HTTP is the address of a web server.
type HTTP struct{ Addr string }

// Health is the liveness endpoint.
type Health struct {
	Addr     string // default :8080
	Lameduck time.Duration
}

// Ready is the readiness endpoint.
type Ready struct {
	Addr       string // default :8181
	Continuous bool   // monitor continuously
}

// PProf serves profiles.
type PProf struct {
	Addr  string // default localhost:6053
	Block int    // block profile rate; 0: off
}

// SearchCut answers below search domains from the knowledge that the label at the top does not exist.
type SearchCut struct {
	Zones []string // canonical; none: all of the block
}
