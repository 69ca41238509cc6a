package forward

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/nodedns/nodedns/e2e/house"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a scripted upstream on a loopback port, over UDP and TCP.
type fake struct {
	t    testing.TB
	addr netip.AddrPort
	udp  net.PacketConn

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	seen     []*asked
	handler  func(*asked)
	wg       sync.WaitGroup
	accepts  atomic.Int32
}

// asked is one query that has reached a fake.
type asked struct {
	*fake
	msg  *dns.Msg
	raw  []byte
	tcp  net.Conn // nil over UDP
	from net.Addr
}

type fakeOption func(*fake)

func noTCP(f *fake) { f.listener.Close(); f.listener = nil }
func noUDP(f *fake) { f.udp.Close(); f.udp = nil }

// newFake starts an upstream that calls handler for each query, each in its own goroutine.
func newFake(t testing.TB, handler func(*asked), options ...fakeOption) *fake {
	t.Helper()
	f := &fake{t: t, handler: handler, conns: make(map[net.Conn]bool)}
	for f.listener == nil {
		udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if f.listener, err = net.Listen("tcp4", udp.LocalAddr().String()); err != nil {
			udp.Close() // somebody has that port over TCP
			continue
		}
		f.udp = udp
		f.addr = netip.MustParseAddrPort(udp.LocalAddr().String())
	}
	for _, o := range options {
		o(f)
	}
	if f.udp != nil {
		f.wg.Go(func() { f.serveUDP(f.udp) })
	}
	if f.listener != nil {
		l := f.listener
		f.wg.Go(func() { f.serveTCP(l) })
	}
	t.Cleanup(f.stop)
	return f
}

func (f *fake) serveUDP(c net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		f.handle(append([]byte(nil), buf[:n]...), nil, from)
	}
}

func (f *fake) serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		f.accepts.Add(1)
		f.mu.Lock()
		f.conns[c] = true
		f.mu.Unlock()
		f.wg.Go(func() {
			defer c.Close()
			for {
				raw, err := readFramed(c)
				if err != nil {
					return
				}
				f.handle(raw, c, c.RemoteAddr())
			}
		})
	}
}

func readFramed(c io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	raw := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(c, raw)
	return raw, err
}

func (f *fake) handle(raw []byte, c net.Conn, from net.Addr) {
	q := &asked{fake: f, raw: raw, tcp: c, from: from, msg: new(dns.Msg)}
	if err := q.msg.Unpack(raw); err != nil {
		f.t.Errorf("upstream got %x: %v", raw, err)
		return
	}
	f.mu.Lock()
	f.seen = append(f.seen, q)
	h := f.handler
	f.mu.Unlock()
	f.wg.Go(func() { h(q) })
}

// stop ends the upstream; its connections are closed.
func (f *fake) stop() {
	f.mu.Lock()
	if f.udp != nil {
		f.udp.Close()
	}
	if f.listener != nil {
		f.listener.Close()
	}
	for c := range f.conns {
		c.Close()
	}
	clear(f.conns)
	f.mu.Unlock()
	f.wg.Wait()
}

// restartTCP ends the TCP side with all its connections and starts it anew.
func (f *fake) restartTCP() {
	f.mu.Lock()
	f.listener.Close()
	for c := range f.conns {
		c.Close()
	}
	clear(f.conns)
	f.mu.Unlock()
	f.listenTCP()
}

func (f *fake) listenTCP() {
	l, err := net.Listen("tcp4", f.addr.String())
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	f.listener = l
	f.mu.Unlock()
	f.wg.Go(func() { f.serveTCP(l) })
}

func (f *fake) become(h func(*asked)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handler = h
}

// count is the number of queries for a name; "" counts all.
func (f *fake) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, q := range f.seen {
		if name == "" || q.is(name) {
			n++
		}
	}
	return n
}

func (q *asked) name() string { return q.msg.Question[0].Name }

func (q *asked) is(name string) bool { return strings.EqualFold(q.name(), dns.Fqdn(name)) }

// reply makes an answer of n A records.
func (q *asked) reply(n int) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q.msg)
	m.RecursionAvailable = true
	m.Compress = true
	for i := range n {
		m.Answer = append(m.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: q.name(), Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30},
			A:   net.IPv4(192, 0, byte(2+i>>8), byte(i+1)),
		})
	}
	return m
}

func (q *asked) send(m *dns.Msg) {
	raw, err := m.Pack()
	if err != nil {
		q.t.Error(err)
		return
	}
	q.sendRaw(raw)
}

func (q *asked) sendRaw(raw []byte) {
	if q.tcp == nil {
		_, _ = q.udp.WriteTo(raw, q.from)
		return
	}
	_, _ = q.tcp.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(raw))), raw...))
}

// answer is the handler of an ordinary upstream.
func answer(q *asked) { q.send(q.reply(1)) }

func silent(*asked) {}

func targets(fakes ...*fake) []Target {
	var ts []Target
	for _, f := range fakes {
		ts = append(ts, Target{Addr: f.addr})
	}
	return ts
}

// forwarder is a Forward that is being run, and what it says.
type forwarder struct {
	*Forward
	reg *prometheus.Registry
	log *logbook
}

func start(t testing.TB, cfg Config) *forwarder {
	t.Helper()
	r := &forwarder{reg: prometheus.NewRegistry(), log: new(logbook)}
	f, err := New(cfg, slog.New(slog.NewTextHandler(r.log, nil)), NewMetrics(r.reg))
	if err != nil {
		t.Fatal(err)
	}
	r.Forward = f
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// logbook keeps what is logged.
type logbook struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) says(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

// value reads a metric; see house.Value.
func (r *forwarder) value(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	return house.Value(t, r.reg, name, labels...)
}

// packed is a query for the A record of name, as resolve would send it.
func packed(t testing.TB, name string) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), dns.TypeA)
	m.SetEdns0(1232, false)
	raw, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// ask exchanges a query for name and returns the reply unpacked.
func (r *forwarder) ask(t testing.TB, name string) (*dns.Msg, error) {
	t.Helper()
	raw, err := r.Exchange(t.Context(), packed(t, name))
	if err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	if err := m.Unpack(raw); err != nil {
		t.Fatalf("reply %x: %v", raw, err)
	}
	if !m.Response || len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, dns.Fqdn(name)) {
		t.Fatalf("reply to another question:\n%v", m)
	}
	return m, nil
}

// mustAsk is ask for a question that has to be answered with n records, within limit.
func (r *forwarder) mustAsk(t testing.TB, name string, n int, limit time.Duration) *dns.Msg {
	t.Helper()
	began := time.Now()
	m, err := r.ask(t, name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(m.Answer) != n {
		t.Fatalf("%s: %d records, want %d", name, len(m.Answer), n)
	}
	if took := time.Since(began); took > limit {
		t.Errorf("%s: answered after %v", name, took)
	}
	return m
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(15 * time.Second)
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

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}
