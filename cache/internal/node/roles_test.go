package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// holdPort binds an address with SO_REUSEPORT, says so, and keeps it.
func holdPort(network, addr string) error {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var opt error
		err := c.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		if err != nil {
			return err
		}
		return opt
	}}
	var held io.Closer
	var err error
	if addr[0] != '[' {
		network += "4" // with plain udp, 0.0.0.0 is bound as the wildcard of both families
	}
	if network[:3] == "udp" {
		held, err = lc.ListenPacket(context.Background(), network, addr)
	} else {
		held, err = lc.Listen(context.Background(), network, addr)
	}
	if err != nil {
		return err
	}
	defer held.Close()
	fmt.Println("held")
	time.Sleep(time.Minute)
	return nil
}

// setUpPowerless sets up a node without the capability it takes.
func setUpPowerless() error {
	cfg := Config{Local: addrs("169.254.25.10"), ClusterIP: addrs("10.96.0.10"), Mode: IPVS, Patience: time.Second}
	n, err := New(cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return err
	}
	if err := n.SetUp(context.Background()); err != nil {
		return err
	}
	return fmt.Errorf("set up without capabilities: %s", n.Status())
}
