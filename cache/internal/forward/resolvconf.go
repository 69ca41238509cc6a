package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// maxResolvConf bounds what is read of a resolv.conf file.
const maxResolvConf = 64 << 10

// resolvConfs keeps the upstreams in step with the resolv.conf files. The files are read
// at intervals: watches go deaf when a file is replaced, or a symlink on its way.
type resolvConfs struct {
	f    *Forward
	last []resolvConf // as last read, in the order of Config.ResolvConf

	targets []Target // in use
	own     []Target // left out
}

// resolvConf is what a file said last.
type resolvConf struct {
	text    []byte
	problem string // why it gave nothing new
	servers []netip.AddrPort
}

func newResolvConfs(f *Forward) *resolvConfs {
	return &resolvConfs{f: f, last: make([]resolvConf, len(f.cfg.ResolvConf))}
}

// watch replaces the upstreams whenever the files have changed.
func (r *resolvConfs) watch(ctx context.Context) {
	for sleep(ctx, r.f.cfg.ResolvConfInterval, nil) {
		r.update()
	}
}

// update replaces the upstreams if they have changed: the configured targets and those
// of the files, each once and without this process itself.
func (r *resolvConfs) update() {
	all := slices.Clone(r.f.cfg.Targets)
	for i, path := range r.f.cfg.ResolvConf {
		r.readFile(path, &r.last[i])
		for _, addr := range r.last[i].servers {
			all = append(all, Target{Addr: addr})
		}
	}
	self := selfAddrs(r.f.cfg.Self)
	var targets, own []Target
	for _, t := range all {
		switch {
		case self(t.Addr):
			own = append(own, t)
		case !slices.Contains(targets, t):
			targets = append(targets, t)
		}
	}
	if len(own) > 0 && !slices.Equal(own, r.own) {
		r.f.log.Warn("upstreams left out: this process listens there", "upstreams", own)
	}
	r.own = own
	if r.targets != nil && !slices.Equal(targets, r.targets) {
		r.f.log.Info("upstreams have changed", "files", r.f.cfg.ResolvConf, "upstreams", targets)
	}
	if !slices.Equal(targets, r.targets) {
		r.f.replace(targets)
	}
	r.targets = targets
}

// readFile brings last up to date.
func (r *resolvConfs) readFile(path string, last *resolvConf) {
	text, err := readRegular(path)
	if err == nil && last.problem == "" && last.text != nil && bytes.Equal(text, last.text) {
		return
	}
	var servers []netip.AddrPort
	if err == nil {
		var odd []string
		servers, odd = parseResolvConf(text)
		if !bytes.Equal(text, last.text) && len(odd) > 0 {
			r.f.log.Warn("nameserver lines skipped", "file", path, "lines", odd)
		}
		if len(servers) == 0 {
			err = errors.New("no nameserver")
		}
	}
	last.text = text
	if err != nil {
		// It may be in the middle of being written: what it said before stands.
		r.f.metrics.resolvErrors.Inc()
		if last.problem != err.Error() {
			r.f.log.Warn("resolv.conf gives no upstream", "file", path, "error", err, "kept", last.servers)
		}
		last.problem = err.Error()
		return
	}
	last.problem, last.servers = "", servers
	r.f.metrics.upstreams.WithLabelValues(path).Set(float64(len(servers)))
}

// readRegular reads a file, not a pipe, which would block, nor a device.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading %s: not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxResolvConf))
}

// parseResolvConf returns all nameservers of a file in resolv.conf(5) form, more than
// the three of glibc, and the lines that name none that can be asked.
func parseResolvConf(text []byte) (servers []netip.AddrPort, odd []string) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "nameserver" {
			continue
		}
		addr, ok := parseNameserver(fields[1:])
		if !ok {
			odd = append(odd, line)
			continue
		}
		if ap := netip.AddrPortFrom(addr, 53); !slices.Contains(servers, ap) {
			servers = append(servers, ap)
		}
	}
	return servers, odd
}

// parseNameserver reads the address of a nameserver line; what follows it is ignored.
func parseNameserver(fields []string) (netip.Addr, bool) {
	if len(fields) == 0 {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(fields[0])
	if err != nil {
		return netip.Addr{}, false
	}
	addr = addr.Unmap()
	switch {
	case addr.IsMulticast():
		return netip.Addr{}, false
	case addr.IsLinkLocalUnicast() && addr.Is6():
		// RFC 4007 section 6: without its zone it means nothing.
		return addr, addr.Zone() != ""
	case addr == netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), true // as glibc reads it
	case addr.WithZone("") == netip.IPv6Unspecified():
		return netip.IPv6Loopback(), true
	}
	return addr.WithZone(""), true // RFC 4007 section 11: a zone says nothing on a global address
}

// selfAddrs returns a test for the addresses that this process listens on; an unspecified
// one stands for all of this host's.
func selfAddrs(self []netip.AddrPort) func(netip.AddrPort) bool {
	listening := make(map[netip.AddrPort]bool)
	for _, ap := range self {
		listening[netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())] = true
		if !ap.Addr().IsUnspecified() {
			continue
		}
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			continue // the loop probe will find out
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					listening[netip.AddrPortFrom(ip.Unmap(), ap.Port())] = true
				}
			}
		}
	}
	return func(ap netip.AddrPort) bool {
		return listening[ap] || listening[netip.AddrPortFrom(ap.Addr().WithZone(""), ap.Port())]
	}
}
