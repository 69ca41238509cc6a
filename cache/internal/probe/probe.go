// Package probe asks this process a DNS question through its own sockets.
//
// It proves that the packets reach this very process, and that it answers, without any upstream: the question is for a name
// only this process knows (a nonce), in class CH, and the socket carries a mark that the node's rules let pass by the lease.
// It does not prove that every worker answers: with SO_REUSEPORT one question reaches one of them. The workers' own progress
// is looked at besides, by whoever calls.
//
//	p := probe.New(probe.Config{Addrs: addrs, Mark: node.ProbeMark})
//	router := resolve.NewRouter(resolve.RouterConfig{Nonce: p.Name(), …})
//	err := p.Prove(ctx) // nil: each address answered over UDP and over TCP
package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"
)

// Config describes a Prober.
type Config struct {
	Addrs []netip.AddrPort // what to ask; none: Prove succeeds
	Mark  uint32           // SO_MARK of the sockets; 0: none. Setting it needs CAP_NET_ADMIN.
	Name  string           // the nonce; empty: a new one
}

// Prober asks. It is safe for concurrent use.
type Prober struct {
	addrs []netip.AddrPort
	mark  uint32
	name  string
	query []byte // but for its ID
}

// NewName returns a domain name nobody else can know, in lower case and absolute.
func NewName() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:]) + ".probe.nodedns."
}

// New returns a Prober.
func New(cfg Config) *Prober {
	if cfg.Name == "" {
		cfg.Name = NewName()
	}
	return &Prober{addrs: cfg.Addrs, mark: cfg.Mark, name: cfg.Name, query: packQuery(cfg.Name)}
}

// Name is the name the probe asks for, of type TXT in class CH.
func (p *Prober) Name() string { return p.name }

const (
	typeTXT = 16
	classCH = 3
	header  = 12
)

func packQuery(name string) []byte {
	msg := make([]byte, header)
	binary.BigEndian.PutUint16(msg[4:], 1) // QDCOUNT
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		msg = append(msg, byte(len(label)))
		msg = append(msg, label...)
	}
	return append(msg, 0, 0, typeTXT, 0, classCH)
}

// atMost is how long a proof may take.
const atMost = 2 * time.Second

// Prove asks every address over UDP and TCP, all at the same time. It returns what failed, joined, each with its address and
// transport. A UDP question is repeated, since a packet may be lost without anybody's fault. It takes two seconds at most: how
// slow an answer is does not matter below that, only that the cache goes on answering.
func (p *Prober) Prove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	results := make(chan error)
	for _, addr := range p.addrs {
		for _, ask := range []func(context.Context, netip.AddrPort) error{p.askUDP, p.askTCP} {
			go func() { results <- ask(ctx, addr) }()
		}
	}
	var errs []error
	for range 2 * len(p.addrs) {
		if err := <-results; err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// repeatAfter is how long a UDP question waits before it is asked again.
const repeatAfter = 200 * time.Millisecond

// askUDP repeats one question, under one ID, until its answer comes: a late answer to an earlier repetition proves as much.
// What answers another question is passed over, and told of when the time is up.
func (p *Prober) askUDP(ctx context.Context, addr netip.AddrPort) error {
	wrap := func(err error) error { return fmt.Errorf("asking %s over udp: %w", addr, err) }
	conn, err := p.dial(ctx, "udp", addr)
	if err != nil {
		return wrap(err)
	}
	defer conn.Close()
	query, err := p.newQuery()
	if err != nil {
		return wrap(err)
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(atMost)
	}
	failure := errors.New("no reply")
	buf := make([]byte, 4096)
	for now := time.Now(); now.Before(deadline) && ctx.Err() == nil; now = time.Now() {
		if _, err := conn.Write(query); err != nil {
			return wrap(err)
		}
		until := now.Add(repeatAfter)
		if deadline.Before(until) {
			until = deadline
		}
		_ = conn.SetReadDeadline(until)
		for {
			n, err := conn.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return wrap(err)
			}
			err = check(query, buf[:n])
			if err == nil {
				return nil
			}
			if failure = err; !errors.Is(err, errStray) {
				return wrap(err)
			}
		}
	}
	return wrap(failure)
}

func (p *Prober) askTCP(ctx context.Context, addr netip.AddrPort) error {
	wrap := func(err error) error { return fmt.Errorf("asking %s over tcp: %w", addr, err) }
	conn, err := p.dial(ctx, "tcp", addr)
	if err != nil {
		return wrap(err)
	}
	defer conn.Close()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // one connection a second must not leave TIME_WAIT sockets behind
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	query, err := p.newQuery()
	if err != nil {
		return wrap(err)
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		return wrap(err)
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return wrap(fmt.Errorf("no reply: %w", err))
	}
	reply := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, reply); err != nil {
		return wrap(fmt.Errorf("reply cut short: %w", err))
	}
	if err := check(query, reply); err != nil {
		return wrap(err)
	}
	return nil
}

// dial connects from a marked socket. A connected UDP socket shows a closed port as an error at once.
func (p *Prober) dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{}
	if p.mark != 0 {
		d.Control = func(_, _ string, c syscall.RawConn) error { return setMark(c, p.mark) }
	}
	conn, err := d.DialContext(ctx, network, addr.String())
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			return nil, op.Err // the address stands beside it already
		}
	}
	return conn, err
}

func (p *Prober) newQuery() ([]byte, error) {
	q := append([]byte(nil), p.query...)
	_, err := rand.Read(q[:2])
	return q, err
}

// errStray is the fault of a message that does not answer the question at hand.
var errStray = errors.New("not a reply to the question")

// check tells this process's own answer from any other: another server would refuse the class or not know the name.
func check(query, reply []byte) error {
	end := len(query)
	switch {
	case len(reply) < end || reply[0] != query[0] || reply[1] != query[1] || reply[2]&0x80 == 0:
		return fmt.Errorf("%w: it has another ID", errStray)
	case string(reply[header:end]) != string(query[header:end]):
		return fmt.Errorf("%w: it has another question in it", errStray)
	case reply[3]&0xf != 0:
		return fmt.Errorf("the reply is from another server: response code %d", reply[3]&0xf)
	case binary.BigEndian.Uint16(reply[6:]) == 0:
		return errors.New("the reply is from another server: it has no answer")
	}
	return nil
}
