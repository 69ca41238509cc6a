package listen

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
)

// A listener that fails again and again, as one without descriptors does, is tried on and
// told of once in a while.
func TestAcceptFailureIsToldOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	ep, err := Listen(Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Drain: 300 * time.Millisecond}, stub{}, slog.New(slog.NewTextHandler(&log, nil)), NewMetrics(nil))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := ep.listener.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := control(raw, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RD) }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ep.Run(ctx) }()
	last, turns := time.Duration(0), 0
	eventually(t, "ten attempts", func() bool {
		if now := time.Duration(ep.turned.Load()); now != last {
			last, turns = now, turns+1
		}
		return turns > 10
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	// Neither does it spin while it drains.
	if n := int(testutil.ToFloat64(ep.metrics.acceptError)); n < turns-1 || n > 100 {
		t.Errorf("%d failures, %d before the drain", n, turns)
	}
	if n := bytes.Count(log.Bytes(), []byte("accepting a connection failed")); n != 1 {
		t.Errorf("told %d times", n)
	}
}
