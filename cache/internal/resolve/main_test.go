package resolve

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstreamFunc is an upstream made of a function from message to message. A nil reply is
// an error.
type upstreamFunc func(q *dns.Msg) *dns.Msg

func (f upstreamFunc) Exchange(_ context.Context, query []byte) ([]byte, error) {
	var q dns.Msg
	if err := q.Unpack(query); err != nil {
		return nil, err
	}
	m := f(&q)
	if m == nil {
		return nil, errors.New("no reply")
	}
	return m.Pack()
}

// answers replies with the records in texts, compressed.
func answers(t testing.TB, texts ...string) upstreamFunc {
	return func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg)
		m.SetReply(q)
		m.Compress = true
		for _, text := range texts {
			rr, err := dns.NewRR(text)
			if err != nil {
				t.Error(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		return m
	}
}

func newTestZone(t testing.TB, change func(*ZoneConfig), up Upstream) *Zone {
	t.Helper()
	cfg := ZoneConfig{Names: []string{"."}, Store: store.New(store.Config{}), Routes: []Route{{From: ".", Upstream: up}}}
	if change != nil {
		change(&cfg)
	}
	z, err := NewZone(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Close)
	return z
}

func newTestRouter(t testing.TB, change func(*ZoneConfig), up Upstream) *Router {
	t.Helper()
	return NewRouter(RouterConfig{Server: "dns://test", Zones: []*Zone{newTestZone(t, change, up)}, Metrics: NewMetrics(nil)})
}

func client(transport wire.Transport) wire.Origin {
	return wire.Origin{Client: netip.MustParseAddrPort("10.0.0.1:4000"), Transport: transport}
}

// ask asks r and unpacks the reply.
func ask(t testing.TB, r *Router, query []byte, from wire.Origin) *dns.Msg {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(answer(t.Context(), r, query, from)); err != nil {
		t.Fatal(err)
	}
	return &m
}

func packedMsg(t testing.TB, name string, qtype uint16, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
