package main

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// One source takes a part of the connections, all together take no more than there are, a new source takes one from who
// has most, and what is closed is free again.
func TestConnectionsAreLimited(t *testing.T) {
	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := newRefusedConnections()
	l := newConnectionLimit(inner, refused, slog.New(slog.DiscardHandler))
	accepted := make(chan net.Conn)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	defer func() { inner.Close(); <-done }()
	dial := func(source byte) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, source)}}
		conn, err := d.DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	taken := func(source byte) net.Conn {
		t.Helper()
		dial(source)
		select {
		case conn := <-accepted:
			t.Cleanup(func() { conn.Close() })
			return conn
		case <-time.After(5 * time.Second):
			t.Fatalf("a connection from source %d is not taken", source)
			return nil
		}
	}
	closed := func(source byte) {
		t.Helper()
		conn := dial(source)
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, io.EOF) || err != nil && !isTimeout(err) {
			return
		}
		t.Errorf("a connection too many from source %d is not closed", source)
	}
	var last net.Conn
	for source := byte(1); source <= mostConnections/mostFromOneSource; source++ {
		for range mostFromOneSource {
			last = taken(source)
		}
		closed(source)
	}
	if got := testutil.ToFloat64(refused); got != mostConnections/mostFromOneSource {
		t.Errorf("%v counted", got)
	}
	for n := range 10 { // a new source, and all are taken
		taken(99)
		if got := testutil.ToFloat64(refused); got != float64(mostConnections/mostFromOneSource+n+1) {
			t.Errorf("%v counted", got)
		}
	}
	last.Close()
	last.Close() // again, as net/http does
	taken(99)
	if got := testutil.ToFloat64(refused); got != mostConnections/mostFromOneSource+10 {
		t.Errorf("%v counted although one was free", got)
	}
	if n := len(l.from[netip.AddrFrom4([4]byte{127, 0, 0, 99})]); n != 11 || l.all != mostConnections {
		t.Errorf("%d connections of the new source, %d in all", n, l.all)
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
