package clients_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// records are what the upstream knows; all else in test. does not exist.
func records() []string {
	all := []string{
		"a.test. 300 IN A 192.0.2.1",
		"a.test. 300 IN AAAA 2001:db8::1",
		"a.test. 300 IN MX 10 mail.test.",
		"v4.test. 300 IN A 192.0.2.4", // and no AAAA
		"alias.test. 300 IN CNAME a.test.",
		"slow.test. 300 IN A 192.0.2.9",
		"signed.test. 300 IN A 192.0.2.7",
		"signed.test. 300 IN RRSIG A 8 2 300 20380101000000 20250101000000 4711 test. c2lnbmF0dXJl",
		"bogus.test. 300 IN A 192.0.2.66", // with CD only
		`odd.test. 300 IN TYPE65280 \# 4 c0000207`,
		`a\.dot\032and\032blank.test. 300 IN A 192.0.2.10`,
		`\000\255.test. 300 IN A 192.0.2.11`,
		"_sip._tcp.test. 300 IN SRV 0 5 5060 a.test.",
		longest() + " 300 IN A 192.0.2.12",
		"1.2.0.192.in-addr.arpa. 300 IN PTR a.test.",
	}
	for i := range 40 {
		all = append(all, fmt.Sprintf("many.test. 300 IN A 198.51.100.%d", i+1))                    // 669 octets
		all = append(all, fmt.Sprintf(`big.test. 300 IN TXT "%02d%s"`, i, strings.Repeat("x", 98))) // 4.4 kB
	}
	return all
}

// longest is a name of 255 octets.
func longest() string {
	label := strings.Repeat("l", 61)
	return strings.Join([]string{label, label, label, strings.Repeat("l", 62), "test."}, ".")
}

// counts are the questions by name in lower case and type: "a.test. A".
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) add(q dns.Question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[strings.ToLower(q.Name)+" "+dns.Type(q.Qtype).String()]++
}

func (c *counts) of(question string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[question]
}

// upstream is the name server behind the cache. It marks its replies with options that are for the cache alone.
type upstream struct {
	byName map[string][]dns.RR
	asked  *counts
}

func startUpstream(at netip.AddrPort) (stop func(), asked *counts, err error) {
	u := &upstream{byName: make(map[string][]dns.RR), asked: &counts{n: make(map[string]int)}}
	for _, text := range records() {
		rr, err := record(text)
		if err != nil {
			return nil, nil, fmt.Errorf("reading %q: %w", text, err)
		}
		name := strings.ToLower(rr.Header().Name)
		u.byName[name] = append(u.byName[name], rr)
	}
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return nil, nil, err
	}
	pc, err := net.ListenPacket("udp", at.String())
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	servers := []*dns.Server{{PacketConn: pc, Handler: u}, {Listener: l, Handler: u}}
	for _, s := range servers {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }()
		<-started
	}
	return func() {
		for _, s := range servers {
			_ = s.Shutdown()
		}
	}, u.asked, nil
}

// record reads a record and spells its names as they are spelled when they come off the wire.
func record(text string) (dns.RR, error) {
	rr, err := dns.NewRR(text)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, 1024)
	n, err := dns.PackRR(rr, buf, 0, nil, false)
	if err != nil {
		return nil, err
	}
	rr, _, err = dns.UnpackRR(buf[:n], 0)
	return rr, err
}

// ServeDNS implements dns.Handler.
func (u *upstream) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	u.asked.add(query.Question[0])
	if strings.HasSuffix(query.Question[0].Name, "slow.test.") {
		time.Sleep(300 * time.Millisecond)
	}
	m := u.reply(query)
	size := dns.MaxMsgSize
	if w.RemoteAddr().Network() == "udp" {
		size = dns.MinMsgSize
		if opt := query.IsEdns0(); opt != nil {
			size = int(opt.UDPSize())
		}
	}
	m.Truncate(size)
	_ = w.WriteMsg(m)
}

func (u *upstream) reply(query *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(query)
	m.RecursionAvailable = true
	m.CheckingDisabled = query.CheckingDisabled
	do := false
	if opt := query.IsEdns0(); opt != nil {
		do = opt.Do()
		m.SetEdns0(4096, do)
		m.IsEdns0().Option = []dns.EDNS0{
			&dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: "6e6f742d796f757273"},
			&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: strings.Repeat("00ff", 12)},
			&dns.EDNS0_PADDING{Padding: make([]byte, 16)},
		}
	}
	q := query.Question[0]
	if strings.EqualFold(q.Name, "bogus.test.") && !query.CheckingDisabled {
		m.Rcode = dns.RcodeServerFailure
		return m
	}
	u.answer(m, q, do)
	m.AuthenticatedData = strings.EqualFold(q.Name, "signed.test.") && (do || query.AuthenticatedData)
	return m
}

func (u *upstream) answer(m *dns.Msg, q dns.Question, do bool) {
	known, ok := u.byName[strings.ToLower(q.Name)]
	for _, rr := range known {
		h := rr.Header()
		switch {
		case h.Rrtype == dns.TypeRRSIG && !do && q.Qtype != dns.TypeANY:
		case h.Rrtype == q.Qtype, h.Rrtype == dns.TypeRRSIG, q.Qtype == dns.TypeANY:
			m.Answer = append(m.Answer, rr)
		case h.Rrtype == dns.TypeCNAME:
			m.Answer = append(m.Answer, rr)
			u.answer(m, dns.Question{Name: rr.(*dns.CNAME).Target, Qtype: q.Qtype, Qclass: q.Qclass}, do)
		}
	}
	if len(m.Answer) == 0 {
		soa, _ := dns.NewRR("test. 300 IN SOA ns.test. h.test. 1 7200 900 86400 300")
		m.Ns = []dns.RR{soa}
		if !ok {
			m.Rcode = dns.RcodeNameError
		}
	}
}
