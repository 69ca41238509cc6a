package listen

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestPipelining(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := start(t, Config{}, stub{
		hit: func(buf, query []byte, from wire.Origin) ([]byte, bool) {
			if cap(buf) < maxMessage || from.Transport != wire.TCP {
				t.Errorf("capacity %d over %v", cap(buf), from.Transport)
			}
			if query[13] == 'h' {
				return echo(buf, query), true
			}
			return nil, false
		},
		resolve: func(_ context.Context, buf, query []byte, from wire.Origin) []byte {
			// Not more: each question of a slow upstream holds one.
			if cap(buf) != udpReply || from.Transport != wire.TCP {
				t.Errorf("capacity %d over %v", cap(buf), from.Transport)
			}
			if query[13] == 's' {
				<-release
			}
			return echo(buf, query)
		},
	})
	c := dial(t, "tcp", r.Addr())
	// All in one segment: a slow miss, a quick miss, hits.
	if _, err := c.Write(frame(question(1, "slow"), question(2, "quick"), question(3, "hit"), question(4, "hit"))); err != nil {
		t.Fatal(err)
	}
	got := map[uint16]bool{}
	for range 3 {
		got[id(readFrame(t, c))] = true
	}
	if !got[2] || !got[3] || !got[4] {
		t.Fatalf("replies %v while one is slow", got)
	}
	close(release)
	if m := readFrame(t, c); id(m) != 1 {
		t.Errorf("reply %x", m)
	}
}

// A message may come in any pieces (RFC 7766 section 8).
func TestFramingInPieces(t *testing.T) {
	t.Parallel()
	r := start(t, Config{}, stub{})
	big := append(question(3, "big"), bytes.Repeat([]byte{0xab}, tcpQuery-100)...)
	stream := frame(question(1, "a"), question(2, "b"), big, question(4, "c"))
	for _, size := range []int{1, 2, 3, 7, 40, 1024, 1026, 4096} {
		c := dial(t, "tcp", r.Addr())
		sent := make(chan error, 1)
		go func() {
			for rest := stream; len(rest) > 0; {
				n := min(size, len(rest))
				if size < 40 && len(rest) < len(stream)-200 && len(rest) > 200 {
					n = min(500, len(rest)-200) // the middle of the big one in larger pieces
				}
				if _, err := c.Write(rest[:n]); err != nil {
					sent <- err
					return
				}
				rest = rest[n:]
			}
			sent <- nil
		}()
		for _, want := range []uint16{1, 2, 3, 4} {
			got := readFrame(t, c)
			if id(got) != want {
				t.Fatalf("pieces of %d: reply %d, want %d", size, id(got), want)
			}
			if want == 3 && !bytes.Equal(got, echo(nil, big)) {
				t.Fatalf("pieces of %d: the big message is not what it was", size)
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
}

// P31 for sockets: the largest message there is goes out whole, and one that is larger
// still becomes SERVFAIL, not silence.
func TestP31_LargestReply(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"hit", "miss"} {
		t.Run(path, func(t *testing.T) {
			answer := func(buf, query []byte) []byte {
				if query[13] == 'l' {
					return append(echo(buf, query), make([]byte, maxMessage-len(query))...)
				}
				return append(echo(buf, query), make([]byte, maxMessage)...)
			}
			r := start(t, Config{}, stub{
				hit: func(buf, query []byte, _ wire.Origin) ([]byte, bool) {
					if path == "miss" {
						return nil, false
					}
					return answer(buf, query), true
				},
				resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte { return answer(buf, query) },
			})
			c := dial(t, "tcp", r.Addr())
			if _, err := c.Write(frame(question(1, "large"))); err != nil {
				t.Fatal(err)
			}
			if got := readFrame(t, c); len(got) != maxMessage || id(got) != 1 {
				t.Errorf("%d octets", len(got))
			}
			if _, err := c.Write(frame(question(2, "toolarge"))); err != nil {
				t.Fatal(err)
			}
			if got := readFrame(t, c); id(got) != 2 || rcode(got) != int(wire.ServFail) {
				t.Errorf("reply %x…", got[:12])
			}
		})
	}
}

// A client that has sent all and closed its side still gets its answers.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := start(t, Config{}, stub{resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
		<-release
		return echo(buf, query)
	}})
	c := dial(t, "tcp", r.Addr()).(*net.TCPConn)
	if _, err := c.Write(frame(question(1, "a"), question(2, "b"))); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	close(release)
	got := map[uint16]bool{id(readFrame(t, c)): true, id(readFrame(t, c)): true}
	if !got[1] || !got[2] {
		t.Errorf("replies %v", got)
	}
	wantEnd(t, c)
}

// wantEnd reads until the server has closed c, which it must.
func wantEnd(t *testing.T, c net.Conn) {
	t.Helper()
	n, err := io.Copy(io.Discard, c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection stays open")
	}
	if n > 0 {
		t.Errorf("%d octets more", n)
	}
}

func TestGarbageEndsConnection(t *testing.T) {
	t.Parallel()
	r := start(t, Config{}, stub{})
	huge := frame(append(question(2, "b"), make([]byte, tcpQuery)...))[:100] // whose rest never comes
	for _, garbage := range [][]byte{{0, 0}, {0, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, huge} {
		c := dial(t, "tcp", r.Addr())
		if _, err := c.Write(append(frame(question(1, "a")), garbage...)); err != nil {
			t.Fatal(err)
		}
		if got := readFrame(t, c); id(got) != 1 {
			t.Errorf("the question before: %x", got)
		}
		wantEnd(t, c)
	}
	if n := r.value(t, "nodedns_tcp_connections_closed_total", "reason", "broken"); n != 3 {
		t.Errorf("closed as broken: %v, want 3", n)
	}
}

// A client that resets its connection while its question is under way harms nobody.
func TestClientReset(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	r := start(t, Config{}, stub{resolve: func(_ context.Context, buf, query []byte, _ wire.Origin) []byte {
		entered <- struct{}{}
		<-release
		return echo(buf, query)
	}})
	c := dial(t, "tcp", r.Addr()).(*net.TCPConn)
	if _, err := c.Write(frame(question(1, "a"))); err != nil {
		t.Fatal(err)
	}
	<-entered
	c.SetLinger(0)
	c.Close()
	close(release)
	eventually(t, "the connection to be gone", func() bool { return r.value(t, "nodedns_tcp_connections") == 0 })
	if _, err := net.Dial("tcp", r.Addr().String()); errors.Is(err, syscall.ECONNREFUSED) {
		t.Error("the listener is gone too")
	}
}
