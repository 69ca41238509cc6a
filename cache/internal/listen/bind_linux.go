package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// bind opens cfg.Sockets UDP sockets and a TCP listener on one address and port.
//
// All carry SO_REUSEPORT: the kernel spreads UDP clients over the sockets, and a new
// Endpoint can be bound while an old one drains. It lets only processes of the same user
// share the port, which still is no lock: who else holds it is for the caller to ask.
func bind(cfg Config) ([]*net.UDPConn, *net.TCPListener, error) {
	const attempts = 16 // for a free port that is free over both transports
	for attempt := 1; ; attempt++ {
		udp, tcp, err := bindOnce(cfg, cfg.Addr)
		switch {
		case err == nil:
			return udp, tcp, nil
		case cfg.Addr.Port() == 0 && errors.Is(err, unix.EADDRINUSE) && attempt < attempts:
			continue
		case cfg.Addr.Addr() == netip.IPv6Unspecified() && errors.Is(err, unix.EAFNOSUPPORT):
			// A kernel without IPv6: every address means every IPv4 address.
			udp, tcp, err := bindOnce(cfg, netip.AddrPortFrom(netip.IPv4Unspecified(), cfg.Addr.Port()))
			return udp, tcp, err
		default:
			return nil, nil, err
		}
	}
}

func bindOnce(cfg Config, addr netip.AddrPort) (udp []*net.UDPConn, tcp *net.TCPListener, err error) {
	defer func() {
		if err != nil {
			closeAll(udp, tcp)
			udp, tcp = nil, nil
		}
	}()
	lc := net.ListenConfig{
		// Idle connections are closed long before a keepalive would notice.
		KeepAlive: -1,
		Control: func(network, _ string, c syscall.RawConn) error {
			return control(c, func(fd int) error { return setOptions(fd, network, cfg) })
		},
	}
	for range cfg.Sockets {
		c, err := lc.ListenPacket(context.Background(), network("udp", addr), addr.String())
		if err != nil {
			return udp, tcp, fmt.Errorf("listening on %s over udp: %w", addr, cause(err))
		}
		u := c.(*net.UDPConn)
		udp = append(udp, u)
		if addr.Port() == 0 {
			addr = netip.AddrPortFrom(addr.Addr(), u.LocalAddr().(*net.UDPAddr).AddrPort().Port())
		}
	}
	l, err := lc.Listen(context.Background(), network("tcp", addr), addr.String())
	if err != nil {
		return udp, tcp, fmt.Errorf("listening on %s over tcp: %w", addr, cause(err))
	}
	return udp, l.(*net.TCPListener), nil
}

// network names the socket family: an IPv4 address gets an IPv4 socket, also the
// unspecified one, for which package net would take both families.
func network(proto string, addr netip.AddrPort) string {
	switch {
	case addr.Addr().Is4():
		return proto + "4"
	case addr.Addr().IsUnspecified():
		return proto
	default:
		return proto + "6"
	}
}

func setOptions(fd int, network string, cfg Config) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fmt.Errorf("setting SO_REUSEPORT: %w", err)
	}
	if network[:3] != "udp" {
		return nil
	}
	// Beyond net.core.rmem_max only with CAP_NET_ADMIN; without it, up to there.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, cfg.ReceiveBuffer) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, cfg.ReceiveBuffer); err != nil {
			return fmt.Errorf("setting SO_RCVBUF: %w", err)
		}
	}
	return nil
}

// control runs f on the descriptor of c.
func control(c syscall.RawConn, f func(fd int) error) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// cause strips what package net adds to an error, which says the address again.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

func closeAll(udp []*net.UDPConn, tcp *net.TCPListener) {
	for _, c := range udp {
		c.Close()
	}
	if tcp != nil {
		tcp.Close()
	}
}
