package forward

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Policy is the order in which upstreams are tried.
type Policy uint8

// The policies of the directive of that name.
const (
	Random Policy = iota
	RoundRobin
	Sequential
)

// DefaultMaxFails is what a Corefile without max_fails means.
const DefaultMaxFails = 2

// Target is one upstream server.
type Target struct {
	// Addr is its address and port; a link-local address carries its zone.
	Addr netip.AddrPort
	// TLS asks it over DNS over TLS (RFC 7858).
	TLS bool
	// ServerName is the name its certificate must have; empty is that of
	// Config.ServerName, and with neither the address itself.
	ServerName string
}

// String is the target as it stands in metrics and logs: address and port.
func (t Target) String() string { return t.Addr.String() }

// Config describes one Forward. Zero fields mean their defaults.
type Config struct {
	// Targets are the upstreams in the order of the Corefile.
	Targets []Target

	// ResolvConf names files in resolv.conf form whose nameservers follow
	// Targets, on port 53. They are read again every ResolvConfInterval (0 is
	// 2 s), whatever happened to them: a file that is missing, empty or a
	// directory contributes nothing until it gets better, and one that has had
	// servers keeps them while it cannot be read.
	ResolvConf         []string
	ResolvConfInterval time.Duration

	// Self holds the addresses this process listens on; upstreams among them are
	// left out with a warning, since they could only loop. An unspecified address
	// stands for every address of this host.
	Self []netip.AddrPort

	// Policy is the order of trying; zero is Random.
	Policy Policy

	// ForceTCP asks every upstream over TCP. Otherwise UDP comes first, for a
	// client on TCP too, and TCP follows a truncated or unreadable reply.
	ForceTCP bool

	// TLS is the client config for upstreams asked over TLS; nil is the default
	// one. ServerName is the name their certificates must have; see Target.
	TLS        *tls.Config
	ServerName string

	// Timeout bounds one Exchange over all its tries; 0 is 4.8 s: an error has to
	// reach a stub resolver before its own usual 5 s are over.
	Timeout time.Duration

	// ReadTimeout bounds one try; 0 is 2 s.
	ReadTimeout time.Duration

	// Expire closes upstream connections that were idle this long; 0 is 10 s.
	Expire time.Duration

	// MaxConcurrent bounds the exchanges under way; beyond it Exchange returns
	// wire.ErrBusy. 0 is no bound.
	MaxConcurrent int

	// MaxConns bounds the TCP connections to one upstream, MaxPipeline the
	// unanswered queries on one of them. 0 is 8 and 512.
	MaxConns    int
	MaxPipeline int

	// MaxIdleConns bounds those connections that are kept while they carry no query;
	// 0 is no bound but MaxConns.
	MaxIdleConns int

	// MaxFails is the number of failed health checks in a row after which an
	// upstream counts as down; 0 is never, and no health checks.
	MaxFails int

	// HealthInterval is the time between two health checks of a failed upstream;
	// 0 is 500 ms. HealthNoRec asks them without RD, HealthDomain for that name
	// instead of the root.
	HealthInterval time.Duration
	HealthNoRec    bool
	HealthDomain   string

	// FailFast makes Exchange fail at once while every upstream is down, instead
	// of trying one at random.
	FailFast bool

	// Failover lists response codes after which the next upstream is asked, as
	// after a timeout.
	Failover []int

	// LoopZones are the zones to probe for forwarding loops; none is no probing.
	// LoopInterval is the time between two probes while all is well; 0 is 30 s.
	LoopZones    []string
	LoopInterval time.Duration

	// Probes is shared by Forwards to which each other's probes may come back; nil
	// is for one alone.
	Probes *Probes
}

// Validate lists all that is wrong with the config, joined.
func (c Config) Validate() error {
	var errs []error
	if len(c.Targets) == 0 && len(c.ResolvConf) == 0 {
		errs = append(errs, errors.New("no upstream"))
	}
	for _, t := range c.Targets {
		if !t.Addr.IsValid() || t.Addr.Port() == 0 || t.Addr.Addr().IsUnspecified() {
			errs = append(errs, fmt.Errorf("upstream %q is not an address and port", t.Addr))
		}
	}
	if c.Policy > Sequential {
		errs = append(errs, fmt.Errorf("unknown policy %d", c.Policy))
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"resolv.conf interval", int64(c.ResolvConfInterval)},
		{"timeout", int64(c.Timeout)},
		{"read timeout", int64(c.ReadTimeout)},
		{"expire", int64(c.Expire)},
		{"max concurrent", int64(c.MaxConcurrent)},
		{"max connections", int64(c.MaxConns)},
		{"max pipeline", int64(c.MaxPipeline)},
		{"max idle connections", int64(c.MaxIdleConns)},
		{"max fails", int64(c.MaxFails)},
		{"health interval", int64(c.HealthInterval)},
		{"loop interval", int64(c.LoopInterval)},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", f.name))
		}
	}
	if c.MaxPipeline > 1<<14 {
		errs = append(errs, fmt.Errorf("max pipeline %d is above %d", c.MaxPipeline, 1<<14))
	}
	if _, err := healthQuery(c.HealthDomain, c.HealthNoRec); err != nil {
		errs = append(errs, fmt.Errorf("health check domain: %w", err))
	}
	for _, z := range c.LoopZones {
		if _, err := loopQuery(loopLabel(0), z); err != nil {
			errs = append(errs, fmt.Errorf("loop zone: %w", err))
		}
	}
	return errors.Join(errs...)
}

// withDefaults fills in what was left zero.
func (c Config) withDefaults() Config {
	c.ResolvConfInterval = cmp.Or(c.ResolvConfInterval, 2*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 4800*time.Millisecond)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 2*time.Second)
	c.Expire = cmp.Or(c.Expire, 10*time.Second)
	c.MaxConns = cmp.Or(c.MaxConns, 8)
	c.MaxPipeline = cmp.Or(c.MaxPipeline, 512)
	c.HealthInterval = cmp.Or(c.HealthInterval, 500*time.Millisecond)
	c.LoopInterval = cmp.Or(c.LoopInterval, 30*time.Second)
	if c.Probes == nil {
		c.Probes = new(Probes)
	}
	return c
}
