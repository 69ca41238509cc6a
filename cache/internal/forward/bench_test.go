package forward

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
)

// echoUpstream answers every query at once with one record, over UDP and TCP, at the
// least cost.
func echoUpstream(b *testing.B) netip.AddrPort {
	b.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	u, err := net.ListenPacket("udp4", l.Addr().String())
	if err != nil {
		l.Close()
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(echoed(nil, buf[:n]), from)
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go echoStream(c)
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

func echoStream(c net.Conn) {
	defer c.Close()
	in, filled := make([]byte, 1<<16), 0
	var out []byte
	for {
		n, err := c.Read(in[filled:])
		if err != nil {
			return
		}
		filled += n
		rest := in[:filled]
		out = out[:0]
		for len(rest) >= 2 {
			size := int(binary.BigEndian.Uint16(rest))
			if len(rest) < 2+size {
				break
			}
			at := len(out)
			out = echoed(append(out, 0, 0), rest[2:2+size])
			binary.BigEndian.PutUint16(out[at:], uint16(len(out)-at-2))
			rest = rest[2+size:]
		}
		filled = copy(in, rest)
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// echoed appends the reply to a query: its question, an A record, no OPT.
func echoed(dst, query []byte) []byte {
	q, ok := readQuery(query)
	if !ok {
		return dst
	}
	at := len(dst)
	dst = append(dst, query[:q.end]...)
	dst[at+2] |= 0x80
	dst[at+7], dst[at+11] = 1, 0
	return append(dst, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 1)
}

// BenchmarkExchange is one query and its reply with 100 under way for each processor,
// the upstream in the same process included.
func BenchmarkExchange(b *testing.B) {
	addr := echoUpstream(b)
	for name, force := range map[string]bool{"udp": false, "tcp": true} {
		b.Run(name, func(b *testing.B) {
			f := start(b, Config{Targets: []Target{{Addr: addr}}, ForceTCP: force, MaxFails: DefaultMaxFails})
			query := packed(b, "www.example.test")
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			b.SetParallelism(100)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := f.Exchange(ctx, query); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
