package bed

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/e2e/host"
)

// The names that the resolver outside the cluster knows; every other name does not exist.
const (
	// OutsideName has the address OutsideIP.
	OutsideName = "www.outside.test."
	// OutsideIP is from a range for documentation.
	OutsideIP = "198.51.100.7"
)

// Outside is the resolver outside the cluster: what a node's /etc/resolv.conf names. It answers on UDP and TCP port 53
// of the control plane's address and counts what it is asked.
type Outside struct {
	servers []*dns.Server
	mu      sync.Mutex
	asked   map[string]int
}

// startOutside starts the resolver in a namespace.
func startOutside(ctx context.Context, ns *host.Namespace) (*Outside, error) {
	o := &Outside{asked: make(map[string]int)}
	address := net.JoinHostPort(ControlPlaneIP, "53")
	udp, err := ns.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, fmt.Errorf("listening as the outside resolver: %w", err)
	}
	tcp, err := ns.Listen(ctx, "tcp", address)
	if err != nil {
		udp.Close()
		return nil, fmt.Errorf("listening as the outside resolver: %w", err)
	}
	handler := dns.HandlerFunc(o.answer)
	o.servers = []*dns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}}
	for _, s := range o.servers {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }() // ends with stop
		<-started
	}
	return o, nil
}

// Asked tells how often a name (with its final dot) was asked.
func (o *Outside) Asked(name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked[dns.CanonicalName(name)]
}

func (o *Outside) answer(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg)
	r.SetReply(q)
	r.RecursionAvailable = true
	question := q.Question[0]
	name := dns.CanonicalName(question.Name)
	o.mu.Lock()
	o.asked[name]++
	o.mu.Unlock()
	hdr := dns.RR_Header{Name: question.Name, Rrtype: question.Qtype, Class: dns.ClassINET, Ttl: 300}
	switch {
	case name != OutsideName:
		r.Rcode = dns.RcodeNameError
	case question.Qtype == dns.TypeA:
		r.Answer = []dns.RR{&dns.A{Hdr: hdr, A: net.ParseIP(OutsideIP)}}
	}
	_ = w.WriteMsg(r) // a client that went away does not matter
}

func (o *Outside) stop() {
	if o == nil {
		return
	}
	for _, s := range o.servers {
		_ = s.Shutdown() // stopped twice is stopped
	}
}
