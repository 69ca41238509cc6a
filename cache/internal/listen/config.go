package listen

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"
)

// Config describes one Endpoint. The zero value of every field but Addr means
// its default.
type Config struct {
	// Addr is the address and port to bind. Port 0 lets the kernel choose one,
	// the same for UDP and TCP. The unspecified IPv6 address serves both
	// families, or IPv4 alone on a kernel without IPv6. A link-local address
	// needs its zone.
	Addr netip.AddrPort

	// Sockets is the number of UDP sockets that share Addr; 0 is GOMAXPROCS.
	Sockets int

	// ReceiveBuffer is the socket receive buffer in bytes; 0 is 4 MiB. What the
	// kernel refuses is taken as far as it goes.
	ReceiveBuffer int

	// MaxInflight bounds the questions being resolved at one time, UDP and TCP
	// together; beyond it they are answered SERVFAIL at once. 0 is 4096.
	MaxInflight int

	// MaxConns bounds open TCP connections, MaxConnsPerClient those of one client
	// address. At a bound the longest idle connection makes room; if none is idle
	// the new one is closed. 0 is 2048 and 256.
	MaxConns          int
	MaxConnsPerClient int

	// MaxPipeline bounds the unanswered questions of one TCP connection; beyond
	// it nothing more is read from it. 0 is 128.
	MaxPipeline int

	// ReadTimeout bounds the arrival of one TCP message from its first byte to
	// its last, WriteTimeout the time a client may take no bytes of its replies,
	// IdleTimeout the time between two messages. 0 is 3 s, 5 s and 10 s.
	ReadTimeout  time.Duration
	WriteTimeout time.Duration
	IdleTimeout  time.Duration

	// Drain bounds how long Run goes on serving after its context has ended while
	// there is still something to answer. 0 is 5 s.
	Drain time.Duration
}

// Validate lists all that is wrong with the config, joined.
func (c Config) Validate() error {
	var errs []error
	if !c.Addr.IsValid() {
		errs = append(errs, errors.New("address missing"))
	} else if a := c.Addr.Addr(); a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
		errs = append(errs, fmt.Errorf("link-local address %s needs a zone (%s%%eth0)", a, a))
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"sockets", int64(c.Sockets)},
		{"receive buffer", int64(c.ReceiveBuffer)},
		{"max inflight", int64(c.MaxInflight)},
		{"max connections", int64(c.MaxConns)},
		{"max connections per client", int64(c.MaxConnsPerClient)},
		{"max pipeline", int64(c.MaxPipeline)},
		{"read timeout", int64(c.ReadTimeout)},
		{"write timeout", int64(c.WriteTimeout)},
		{"idle timeout", int64(c.IdleTimeout)},
		{"drain", int64(c.Drain)},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", f.name))
		}
	}
	return errors.Join(errs...)
}

// withDefaults fills in what was left zero.
func (c Config) withDefaults() Config {
	c.Sockets = cmp.Or(c.Sockets, runtime.GOMAXPROCS(0))
	c.ReceiveBuffer = cmp.Or(c.ReceiveBuffer, 4<<20)
	c.MaxInflight = cmp.Or(c.MaxInflight, 4096)
	c.MaxConns = cmp.Or(c.MaxConns, 2048)
	c.MaxConnsPerClient = cmp.Or(c.MaxConnsPerClient, 256)
	c.MaxPipeline = cmp.Or(c.MaxPipeline, 128)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 3*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 5*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 10*time.Second)
	c.Drain = cmp.Or(c.Drain, 5*time.Second)
	return c
}
