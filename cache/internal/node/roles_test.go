package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// roleVar makes the test program one of the parts around the node: a DNS server or a client.
const roleVar = "NODE_TEST_ROLE"

// actRole runs the part and ends the process, if this process is one.
func actRole() {
	var err error
	switch os.Getenv(roleVar) {
	case "":
		return
	case "server":
		err = serveDNS()
	case "holder":
		err = holdPort(os.Args[1], os.Args[2])
	case "squatter":
		err = squat()
	case "owner":
		err = ownForever()
	case "powerless":
		err = setUpPowerless()
	case "load":
		err = askLoad()
	case "api":
		err = serveAPI(os.Args[1])
	case "stick":
		err = askToStick(os.Args[1], os.Args[2])
	default:
		err = fmt.Errorf("no role %q", os.Getenv(roleVar))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveDNS stands in for CoreDNS: one address for every name, another for those that the cache rewrote, and an identifier
// for who asks for one.
func serveDNS() error {
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		r.SetReply(q)
		address := addressPlain
		if strings.HasSuffix(strings.ToLower(q.Question[0].Name), rewritten+".") {
			address = addressByCache
		}
		r.Answer = append(r.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5},
			A:   net.ParseIP(address),
		})
		if opt := q.IsEdns0(); opt != nil {
			r.SetEdns0(1232, false)
			for _, o := range opt.Option {
				if o.Option() == dns.EDNS0NSID {
					r.IsEdns0().Option = append(r.IsEdns0().Option, &dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: "636c7573746572"})
				}
			}
		}
		_ = w.WriteMsg(r)
	})
	failed := make(chan error, 2)
	for _, network := range []string{"udp", "tcp"} {
		s := &dns.Server{Addr: ":53", Net: network, Handler: handler, NotifyStartedFunc: func() { fmt.Println("serving", network) }}
		go func() { failed <- s.ListenAndServe() }()
	}
	return <-failed
}

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// holdPort binds an address with SO_REUSEPORT, says so, and keeps it.
func holdPort(network, addr string) error {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var opt error
		err := c.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		if err != nil {
			return err
		}
		return opt
	}}
	var held io.Closer
	var err error
	if addr[0] != '[' {
		network += "4" // with plain udp, 0.0.0.0 is bound as the wildcard of both families
	}
	if network[:3] == "udp" {
		held, err = lc.ListenPacket(context.Background(), network, addr)
	} else {
		held, err = lc.Listen(context.Background(), network, addr)
	}
	if err != nil {
		return err
	}
	defer held.Close()
	fmt.Println("held")
	time.Sleep(time.Minute)
	return nil
}

// squat takes the first name of the node's lock as another user than root, says so, and keeps it.
func squat() error {
	if err := syscall.Setuid(65534); err != nil {
		return err
	}
	l, err := net.Listen("unix", lockName(0))
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("held")
	time.Sleep(time.Minute)
	return nil
}

// setUpPowerless sets up a node without the capability it takes.
func setUpPowerless() error {
	cfg := Config{Local: addrs("169.254.25.10"), ClusterIP: addrs("10.96.0.10"), Mode: IPVS, Patience: time.Second}
	n, err := New(cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return err
	}
	if err := n.SetUp(context.Background()); err != nil {
		return err
	}
	return fmt.Errorf("set up without capabilities: %s", n.Status())
}

// askToStick sends a server questions that make the worker hang which reads them, each from a port of its own.
func askToStick(server, times string) error {
	n, err := strconv.Atoi(times)
	if err != nil {
		return err
	}
	q := new(dns.Msg)
	q.SetQuestion("stick.nodedns-fault.", dns.TypeA)
	wire, err := q.Pack()
	if err != nil {
		return err
	}
	for range n {
		c, err := net.Dial("udp", server)
		if err != nil {
			return err
		}
		if _, err := c.Write(wire); err != nil {
			return err
		}
		_ = c.Close()
	}
	return nil
}
