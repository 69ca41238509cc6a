package listen

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/nodedns/nodedns/cache/internal/wire"
	"github.com/nodedns/nodedns/e2e/house"
)

func TestMain(m *testing.M) {
	if server := os.Getenv(benchServer); server != "" {
		runBenchServer(server)
		return
	}
	goleak.VerifyTestMain(m)
}

// stub is a handler made of functions; without one of them it echoes the query with QR
// set, as a hit.
type stub struct {
	hit     func(buf, query []byte, from wire.Origin) ([]byte, bool)
	resolve func(ctx context.Context, buf, query []byte, from wire.Origin) []byte
}

func (s stub) Hit(buf, query []byte, from wire.Origin) ([]byte, bool) {
	switch {
	case s.hit != nil:
		return s.hit(buf, query, from)
	case s.resolve != nil:
		return nil, false
	}
	return echo(buf, query), true
}

func (s stub) Resolve(ctx context.Context, buf, query []byte, from wire.Origin) []byte {
	return s.resolve(ctx, buf, query, from)
}

func echo(buf, query []byte) []byte {
	buf = append(buf, query...)
	buf[2] |= 0x80
	return buf
}

// running is an endpoint that is being run.
type running struct {
	*Endpoint
	reg  *prometheus.Registry
	stop context.CancelFunc
	done chan error
}

func start(t *testing.T, cfg Config, h Handler) *running {
	t.Helper()
	if !cfg.Addr.IsValid() {
		cfg.Addr = netip.MustParseAddrPort("127.0.0.1:0")
	}
	r := &running{reg: prometheus.NewRegistry(), done: make(chan error, 1)}
	ep, err := Listen(cfg, h, slog.New(slog.DiscardHandler), NewMetrics(r.reg))
	if err != nil {
		t.Fatal(err)
	}
	r.Endpoint = ep
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- ep.Run(ctx) }()
	t.Cleanup(func() { r.end(t) })
	return r
}

// end stops the endpoint and waits for it.
func (r *running) end(t *testing.T) {
	t.Helper()
	if r.done == nil {
		return
	}
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not end")
	}
	r.done = nil
}

// value reads a metric; see house.Value.
func (r *running) value(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return house.Value(t, r.reg, name, labels...)
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// question packs a query for the A record of name under .test.
func question(id uint16, name string) []byte {
	q := binary.BigEndian.AppendUint16(nil, id)
	q = append(q, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	q = append(q, byte(len(name)))
	q = append(q, name...)
	return append(q, 4, 't', 'e', 's', 't', 0, 0, 1, 0, 1)
}

func dial(t *testing.T, network string, addr netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial(network, addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a query over UDP and returns the reply.
func ask(t *testing.T, c net.Conn, query []byte) []byte {
	t.Helper()
	if _, err := c.Write(query); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func frame(msgs ...[]byte) []byte {
	var out []byte
	for _, m := range msgs {
		out = binary.BigEndian.AppendUint16(out, uint16(len(m)))
		out = append(out, m...)
	}
	return out
}

// readFrame reads one framed message.
func readFrame(t *testing.T, c net.Conn) []byte {
	t.Helper()
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		t.Fatalf("reading a frame: %v", err)
	}
	msg := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, msg); err != nil {
		t.Fatalf("reading a frame: %v", err)
	}
	return msg
}

func id(msg []byte) uint16 { return binary.BigEndian.Uint16(msg) }

func rcode(msg []byte) int { return int(msg[3] & 15) }
