package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// Question asks for the A records of name and for the identity of who answers.
func Question(name string) *dns.Msg {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), dns.TypeA)
	q.SetEdns0(1232, false)
	q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
	return q
}

// overUDP asks from a new socket. took is the time from sending to the arrival at the socket.
func overUDP(ctx context.Context, c Config, q *dns.Msg) (by string, took time.Duration, err error) {
	wire, err := q.Pack()
	if err != nil {
		return "", 0, err
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(c.Server))
	if err != nil {
		return "", 0, err
	}
	defer conn.Close()
	if err := stamp(conn); err != nil {
		return "", 0, err
	}
	sent := time.Now()
	if _, err := conn.Write(wire); err != nil {
		return "", time.Since(sent), err
	}
	if err := conn.SetReadDeadline(sent.Add(c.Deadline)); err != nil {
		return "", 0, err
	}
	r, at, err := receive(conn, q)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		// The timer may have been seen before an answer that had been there in time.
		if err := conn.SetReadDeadline(time.Now().Add(c.Deadline / 20)); err != nil {
			return "", 0, err
		}
		r, at, err = receive(conn, q)
	}
	if err != nil {
		return "", time.Since(sent), err
	}
	// Round: wall clock against wall clock, since the kernel's stamp knows no other.
	if took = at.Sub(sent.Round(0)); took > c.Deadline {
		return "", took, os.ErrDeadlineExceeded
	}
	by, err = Judge(r)
	return by, took, err
}

// receive reads until a packet is the answer to q, and tells when that packet arrived.
func receive(conn *net.UDPConn, q *dns.Msg) (*dns.Msg, time.Time, error) {
	buf, control := make([]byte, 4096), make([]byte, 128)
	for {
		n, cn, _, _, err := conn.ReadMsgUDP(buf, control)
		if err != nil {
			return nil, time.Time{}, err
		}
		r := new(dns.Msg)
		if r.Unpack(buf[:n]) != nil || !r.Response || r.Id != q.Id || len(r.Question) != 1 || r.Question[0] != q.Question[0] {
			continue
		}
		at, err := arrival(control[:cn])
		return r, at, err
	}
}

// overTCP asks over a new connection, the handshake included.
func overTCP(ctx context.Context, c Config, q *dns.Msg) (by string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.Deadline)
	defer cancel()
	begin := time.Now()
	r, _, err := (&dns.Client{Net: "tcp", Timeout: c.Deadline}).ExchangeContext(ctx, q, c.Server.String())
	if took = time.Since(begin); err != nil {
		return "", took, err
	}
	by, err = Judge(r)
	return by, took, err
}

// Judge tells who gave the answer to a Question, as ByCache or ByClusterDNS; an answer without addresses is a failure.
func Judge(r *dns.Msg) (by string, err error) {
	if r.Rcode != dns.RcodeSuccess || len(r.Answer) == 0 {
		return "", fmt.Errorf("%s, %d answers", dns.RcodeToString[r.Rcode], len(r.Answer))
	}
	if opt := r.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if id, ok := o.(*dns.EDNS0_NSID); ok && id.Nsid != "" {
				return ByClusterDNS, nil
			}
		}
	}
	return ByCache, nil
}

// keepStamping holds a socket that asks for arrival times. The kernel begins to stamp packets a moment after the first socket
// has asked, and ends with the last; a packet without a stamp gets the time at which it is read.
func keepStamping() (io.Closer, error) {
	conn, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return nil, fmt.Errorf("asking for arrival times: %w", err)
	}
	if err := stamp(conn); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("asking for arrival times: %w", err)
	}
	time.Sleep(20 * time.Millisecond)
	return conn, nil
}

// stamp asks the kernel for the arrival time of each packet.
func stamp(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	}); err != nil {
		return err
	}
	return set
}

// arrival reads the kernel's time stamp.
func arrival(control []byte) (time.Time, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading a packet's arrival: %w", err)
	}
	for _, m := range messages {
		// A timespec of 64-bit systems: seconds and nanoseconds, eight bytes each.
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			seconds, nanoseconds := binary.NativeEndian.Uint64(m.Data), binary.NativeEndian.Uint64(m.Data[8:])
			return time.Unix(int64(seconds), int64(nanoseconds)), nil
		}
	}
	return time.Time{}, errors.New("reading a packet's arrival: the kernel gave none")
}
