package listen

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestHitOverUDP(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"} {
		t.Run(addr, func(t *testing.T) {
			var mu sync.Mutex
			var origin wire.Origin
			r := start(t, Config{Addr: netip.MustParseAddrPort(addr), Sockets: 3}, stub{
				hit: func(buf, query []byte, from wire.Origin) ([]byte, bool) {
					mu.Lock()
					defer mu.Unlock()
					origin = from
					return echo(buf, query), true
				},
			})
			target := r.Addr()
			if target.Addr().IsUnspecified() {
				target = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), target.Port())
			}
			for i := range 20 { // over all the sockets
				c := dial(t, "udp", target)
				q := question(uint16(i), "a")
				if got := ask(t, c, q); !bytes.Equal(got, echo(nil, q)) {
					t.Fatalf("reply %x to %x", got, q)
				}
				mu.Lock()
				got := origin
				mu.Unlock()
				if want := c.LocalAddr().(*net.UDPAddr).AddrPort(); got.Client != want || got.Transport != wire.UDP {
					t.Fatalf("origin %v, want %v over udp", got, want)
				}
			}
		})
	}
}

// Replies leave from the address that was asked, also if the socket is bound to all.
func TestReplySource(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ bind, ask, network string }{
		{"0.0.0.0:0", "127.0.0.2", "udp4"},
		{"0.0.0.0:0", "127.3.2.1", "udp4"},
		{"[::]:0", "127.0.0.2", "udp4"},
		{"[::]:0", "::1", "udp6"},
	} {
		for _, path := range []string{"hit", "miss"} {
			t.Run(tc.bind+"/"+tc.ask+"/"+path, func(t *testing.T) {
				h := stub{}
				if path == "miss" {
					h.resolve = func(_ context.Context, buf, query []byte, _ wire.Origin) []byte { return echo(buf, query) }
				}
				r := start(t, Config{Addr: netip.MustParseAddrPort(tc.bind)}, h)
				// Not connected, so that a reply from anywhere is seen.
				c, err := net.ListenPacket(tc.network, map[string]string{"udp4": "127.0.0.1:0", "udp6": "[::1]:0"}[tc.network])
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				asked := netip.AddrPortFrom(netip.MustParseAddr(tc.ask), r.Addr().Port())
				if _, err := c.WriteTo(question(1, "a"), net.UDPAddrFromAddrPort(asked)); err != nil {
					t.Fatal(err)
				}
				c.SetDeadline(time.Now().Add(5 * time.Second))
				_, from, err := c.ReadFrom(make([]byte, 512))
				if err != nil {
					t.Fatal(err)
				}
				if from.String() != asked.String() {
					t.Errorf("asked %s, reply from %s", asked, from)
				}
			})
		}
	}
}

func TestMissOverUDP(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := start(t, Config{}, stub{resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
		if query[13] == 's' {
			<-release
		}
		return echo(buf, query)
	}})
	c := dial(t, "udp", r.Addr())
	if _, err := c.Write(question(1, "slow")); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, c, question(2, "quick")); id(got) != 2 {
		t.Fatalf("a slow question holds up another: reply %d first", id(got))
	}
	close(release)
	if got := ask(t, c, question(3, "quick")); id(got) != 1 && id(got) != 3 {
		t.Fatalf("reply %d", id(got))
	}
}

// The query that Resolve works on stays as it is while others come in.
func TestMissKeepsItsQuery(t *testing.T) {
	t.Parallel()
	const n = 200
	var all sync.WaitGroup
	all.Add(n)
	r := start(t, Config{Sockets: 1}, stub{resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
		all.Done()
		all.Wait()
		return echo(buf, query)
	}})
	c := dial(t, "udp", r.Addr())
	want := make(map[string]bool)
	for i := range n {
		q := question(uint16(i), fmt.Sprintf("n%d", i))
		want[string(echo(nil, q))] = true
		if _, err := c.Write(q); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 512)
	for range n {
		m, err := c.Read(buf)
		if err != nil {
			t.Fatalf("%d replies missing: %v", len(want), err)
		}
		if !want[string(buf[:m])] {
			t.Fatalf("unexpected reply %x", buf[:m])
		}
		delete(want, string(buf[:m]))
	}
}

// P21: no answer to what is no question: shorter than a header, or what the handler
// answers with silence.
func TestP21_Silence(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"hit", "miss"} {
		t.Run(path, func(t *testing.T) {
			quiet := func(query []byte) bool { return query[2]&0x80 != 0 }
			r := start(t, Config{}, stub{
				hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
					switch {
					case path == "miss":
						return nil, false
					case quiet(query):
						return nil, true
					}
					return echo(buf, query), true
				},
				resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
					if quiet(query) {
						return nil
					}
					return echo(buf, query)
				},
			})
			c := dial(t, "udp", r.Addr())
			answer := question(7, "a")
			answer[2] |= 0x80
			for _, p := range [][]byte{{}, {1}, answer[:11], answer, {0x1a, 0x2b, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0}} {
				if _, err := c.Write(p); err != nil {
					t.Fatal(err)
				}
			}
			if got := ask(t, c, question(9, "a")); id(got) != 9 {
				t.Errorf("reply %x to a packet that wants none", got)
			}
		})
	}
}

// P21: a packet with the server's own address as its source does not start a storm.
func TestP21_OwnAddress(t *testing.T) {
	t.Parallel()
	handled := make(chan struct{}, 1000)
	r := start(t, Config{Sockets: 1}, stub{hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
		handled <- struct{}{}
		if query[2]&0x80 != 0 {
			return nil, true
		}
		return echo(buf, query), true
	}})
	raw := r.udp[0].conn
	if _, err := raw.WriteToUDPAddrPort(question(1, "a"), r.Addr()); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, dial(t, "udp", r.Addr()), question(2, "b")); id(got) != 2 {
		t.Fatalf("reply %x", got)
	}
	r.end(t)
	if n := len(handled); n > 3 { // the question, its answer, the other question
		t.Errorf("%d packets went round", n)
	}
}

func TestOversizedQuery(t *testing.T) {
	t.Parallel()
	r := start(t, Config{}, stub{})
	q := append(question(5, "a"), make([]byte, 2*udpQuery)...)
	got := ask(t, dial(t, "udp", r.Addr()), q)
	if id(got) != 5 || rcode(got) != int(wire.FormErr) {
		t.Errorf("reply %x, want FORMERR", got)
	}
}

func TestLargestUDPReply(t *testing.T) {
	t.Parallel()
	r := start(t, Config{}, stub{hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
		if cap(buf) < udpReply || len(buf) != 0 {
			t.Errorf("buffer with length %d and capacity %d", len(buf), cap(buf))
		}
		return append(echo(buf, query), make([]byte, udpReply-len(query))...), true
	}})
	if got := ask(t, dial(t, "udp", r.Addr()), question(1, "a")); len(got) != udpReply {
		t.Errorf("%d octets", len(got))
	}
}

func TestPanicIsServfail(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"hit", "resolve"} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(where+"/"+network, func(t *testing.T) {
				bad := func(query []byte) bool { return query[13] == 'p' }
				r := start(t, Config{Sockets: 1}, stub{
					hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
						if bad(query) {
							if where == "hit" {
								panic("in Hit")
							}
							return nil, false
						}
						return echo(buf, query), true
					},
					resolve: func(context.Context, []byte, []byte, wire.Origin) []byte { panic("in Resolve") },
				})
				c := dial(t, network, r.Addr())
				for i := range uint16(3) {
					ids := map[uint16]int{} // id → rcode
					for j, name := range []string{"good", "panic", "good", "panic"} {
						q := question(i*10+uint16(j), name)
						if network == "tcp" {
							q = frame(q)
						}
						if _, err := c.Write(q); err != nil {
							t.Fatal(err)
						}
					}
					for range 4 {
						var got []byte
						if network == "tcp" {
							got = readFrame(t, c)
						} else {
							got = make([]byte, 512)
							n, err := c.Read(got)
							if err != nil {
								t.Fatal(err)
							}
							got = got[:n]
						}
						ids[id(got)] = rcode(got)
					}
					for j := range uint16(4) {
						want := 0
						if j%2 == 1 {
							want = int(wire.ServFail)
						}
						if code, ok := ids[i*10+j]; !ok || code != want {
							t.Fatalf("question %d: rcode %d (answered: %v), want %d", j, code, ok, want)
						}
					}
				}
				if n := r.value(t, "coredns_panics_total"); n != 6 {
					t.Errorf("coredns_panics_total %v, want 6", n)
				}
			})
		}
	}
}

// Beyond the limit questions are answered at once, and hits go on.
func TestOverload(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			release := make(chan struct{})
			r := start(t, Config{MaxInflight: 2}, stub{
				hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
					if query[13] == 'h' {
						return echo(buf, query), true
					}
					return nil, false
				},
				resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
					<-release
					return echo(buf, query)
				},
			})
			c := dial(t, network, r.Addr())
			send := func(id uint16, name string) {
				t.Helper()
				q := question(id, name)
				if network == "tcp" {
					q = frame(q)
				}
				if _, err := c.Write(q); err != nil {
					t.Fatal(err)
				}
			}
			read := func() []byte {
				t.Helper()
				if network == "tcp" {
					return readFrame(t, c)
				}
				buf := make([]byte, 512)
				n, err := c.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				return buf[:n]
			}
			for i := range uint16(5) {
				send(i, "miss")
			}
			for i := range uint16(3) {
				if got := read(); id(got) != 2+i || rcode(got) != int(wire.ServFail) {
					t.Fatalf("reply %d with rcode %d, want SERVFAIL for %d", id(got), rcode(got), 2+i)
				}
			}
			send(10, "hit")
			if got := read(); id(got) != 10 || rcode(got) != 0 {
				t.Fatalf("hit under overload: %x", got)
			}
			close(release)
			for range 2 {
				if got := read(); id(got) > 1 || rcode(got) != 0 {
					t.Fatalf("reply %x", got)
				}
			}
			if n := r.value(t, "nodedns_overload_total", "proto", network); n != 3 {
				t.Errorf("nodedns_overload_total %v, want 3", n)
			}
			// The tasks are free again.
			send(11, "miss")
			if got := read(); id(got) != 11 || rcode(got) != 0 {
				t.Errorf("after the load: %x", got)
			}
		})
	}
}

// A hit allocates nothing, from the socket to the socket.
func TestHitAllocatesNothing(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0"} {
		t.Run(addr, func(t *testing.T) {
			r := start(t, Config{Addr: netip.MustParseAddrPort(addr), Sockets: 1}, stub{})
			target := r.Addr()
			if target.Addr().IsUnspecified() {
				target = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), target.Port())
			}
			c := dial(t, "udp", target)
			q, buf := question(1, "a"), make([]byte, 512)
			round := func() {
				binary.BigEndian.PutUint16(q, id(q)+1)
				if _, err := c.Write(q); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Read(buf); err != nil {
					t.Fatal(err)
				}
			}
			if n := testing.AllocsPerRun(2000, round); n != 0 {
				t.Errorf("%v allocations per hit", n)
			}
		})
	}
}

// What a miss costs here: nothing that stays, once the tasks are there.
func TestMissAllocatesNothing(t *testing.T) {
	r := start(t, Config{Sockets: 1}, stub{resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
		return echo(buf, query)
	}})
	c := dial(t, "udp", r.Addr())
	q, buf := question(1, "a"), make([]byte, 512)
	n := testing.AllocsPerRun(2000, func() {
		if _, err := c.Write(q); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per miss", n)
	}
}
