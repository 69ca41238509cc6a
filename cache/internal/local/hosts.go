package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// HostsConfig is the hosts directive.
type HostsConfig struct {
	// File is in the form of hosts(5). Empty means none; one that is missing is read
	// once it is there.
	File string
	// Inline are lines in the same form. A name in them hides the same name in File.
	Inline []string
	// Zones are where it answers, in presentation format. None means everywhere.
	Zones []string
	// TTL is that of the records. Zero means an hour.
	TTL time.Duration
	// Reload is how often File is looked at. Zero means never again.
	Reload time.Duration
	// NoReverse leaves PTR questions to the next in line.
	NoReverse bool
	// Fallthrough are the zones in which an unknown name is for the next in line;
	// elsewhere it is answered with SERVFAIL.
	Fallthrough []string
	// FallthroughUnsupported passes other types on as well, for a known name too.
	FallthroughUnsupported bool
	// Log gets a record when File cannot be read. Nil means none.
	Log *slog.Logger
}

// Hosts answers A, AAAA and PTR questions from a hosts file.
type Hosts struct {
	cfg            HostsConfig
	zones, through []string
	inline         *table
	names          atomic.Pointer[table] // inline and file

	mu      sync.Mutex // guards what follows; held by the one who looks at the file
	checked time.Time
	seen    time.Time // modification time of the file
	size    int64
	failed  bool
}

// NewHosts returns an answerer that has read its file.
func NewHosts(cfg HostsConfig) *Hosts {
	if cfg.TTL == 0 {
		cfg.TTL = time.Hour
	}
	h := &Hosts{cfg: cfg, zones: canonical(cfg.Zones), through: canonical(cfg.Fallthrough), inline: newTable()}
	if len(h.zones) == 0 {
		h.zones = []string{"."}
	}
	for _, line := range cfg.Inline {
		h.inline.addLine(line)
	}
	h.names.Store(h.inline)
	h.checked = time.Now()
	h.load()
	return h
}

// refresh looks at the file if it is time to and nobody else does.
func (h *Hosts) refresh() {
	if h.cfg.File == "" || h.cfg.Reload <= 0 || !h.mu.TryLock() {
		return
	}
	defer h.mu.Unlock()
	if time.Since(h.checked) < h.cfg.Reload {
		return
	}
	h.checked = time.Now()
	h.load()
}

// load reads the file if it has changed. While it is away the inline lines stay.
func (h *Hosts) load() {
	if h.cfg.File == "" {
		return
	}
	text, info, err := readHosts(h.cfg.File, h.seen, h.size)
	if err == nil && text == nil {
		return
	}
	if err != nil {
		if !h.failed && h.cfg.Log != nil {
			h.cfg.Log.Warn("reading hosts file", slog.String("file", h.cfg.File), slog.Any("error", err))
		}
		h.failed, h.seen, h.size = true, time.Time{}, 0
		h.names.Store(h.inline)
		return
	}
	h.failed, h.seen, h.size = false, info.ModTime(), info.Size()
	h.names.Store(h.inline.with(text))
}

// maxHostsFile is the size up to which a hosts file is read, in octets: more than the
// largest lists of blocked names have, and not what is no hosts file at all.
const maxHostsFile = 32 << 20

// readHosts reads a file unless it is as it was: then text is nil. It is read while a
// question waits, so nothing that could block is opened: O_NONBLOCK matters for a FIFO,
// which would wait for a writer.
func readHosts(name string, seen time.Time, size int64) (text []byte, info fs.FileInfo, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, nil, errors.New("no regular file")
	case info.Size() > maxHostsFile:
		return nil, nil, fmt.Errorf("%d octets: at most %d", info.Size(), maxHostsFile)
	case info.ModTime().Equal(seen) && info.Size() == size:
		return nil, info, nil
	}
	buf := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead)) // not nil for an empty file
	_, err = buf.ReadFrom(io.LimitReader(f, maxHostsFile))
	return buf.Bytes(), info, err
}

// Answer implements the resolver's interface for local answers.
func (h *Hosts) Answer(query []byte, _ wire.Origin) (out []byte, keep bool) {
	q, ok := read(query)
	if !ok || q.Question[0].Qclass != dns.ClassINET {
		return nil, false
	}
	h.refresh()
	name, qtype := q.Question[0].Name, q.Question[0].Qtype
	t := h.names.Load()
	if qtype == dns.TypePTR {
		// Reverse names need not lie in one of the zones.
		if names := t.reverse(name); len(names) > 0 && !h.cfg.NoReverse {
			return pack(q, h.pointers(q, names)), true
		}
		return nil, false
	}
	if _, ok := zoneOf(name, h.zones); !ok {
		return nil, false
	}
	_, through := zoneOf(name, h.through)
	if qtype != dns.TypeA && qtype != dns.TypeAAAA && h.cfg.FallthroughUnsupported && through {
		return nil, false
	}
	addrs, known := t.lookup(name)
	switch {
	case known:
		return pack(q, h.addresses(q, addrs)), true
	case through:
		return nil, false
	}
	// There is no SOA to say with NXDOMAIN how long that holds.
	return pack(q, new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)), true
}

func (h *Hosts) header(q *dns.Msg) dns.RR_Header {
	return dns.RR_Header{
		Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET, Ttl: uint32(h.cfg.TTL / time.Second),
	}
}

func (h *Hosts) pointers(q *dns.Msg, names []string) *dns.Msg {
	m := reply(q)
	for _, n := range names {
		m.Answer = append(m.Answer, &dns.PTR{Hdr: h.header(q), Ptr: n})
	}
	return m
}

// addresses returns those of the family asked for: none is NODATA, since the name exists.
func (h *Hosts) addresses(q *dns.Msg, addrs []netip.Addr) *dns.Msg {
	m := reply(q)
	for _, a := range addrs {
		switch {
		case a.Is4() && q.Question[0].Qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: h.header(q), A: net.IP(a.AsSlice())})
		case a.Is6() && q.Question[0].Qtype == dns.TypeAAAA:
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: h.header(q), AAAA: net.IP(a.AsSlice())})
		}
	}
	return m
}
