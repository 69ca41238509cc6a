package local

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// table is the content of a hosts file.
type table struct {
	addrs map[string][]netip.Addr // by name in lower case with its final dot
	names map[string][]string     // by reverse name
}

func newTable() *table {
	return &table{addrs: make(map[string][]netip.Addr), names: make(map[string][]string)}
}

// with returns t and the lines of text whose names t does not have.
func (t *table) with(text []byte) *table {
	file := newTable()
	for line := range strings.Lines(string(text)) {
		file.addLine(line)
	}
	maps.Copy(file.addrs, t.addrs)
	maps.Copy(file.names, t.names)
	return file
}

// addLine adds an address and its names. Anything else is passed over, as hosts files
// are full of it.
func (t *table) addLine(line string) {
	line, _, _ = strings.Cut(line, "#")
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return
	}
	// A zone on a link-local address is of no use to clients.
	addr, err := netip.ParseAddr(fields[0])
	if err != nil {
		return
	}
	addr = addr.WithZone("").Unmap()
	reverse, err := dns.ReverseAddr(addr.String())
	if err != nil {
		return
	}
	for _, n := range fields[1:] {
		name := strings.ToLower(dns.Fqdn(n))
		if _, ok := dns.IsDomainName(name); !ok {
			continue
		}
		if !slices.Contains(t.addrs[name], addr) {
			t.addrs[name] = append(t.addrs[name], addr)
		}
		if !strings.HasPrefix(name, "*.") && !slices.Contains(t.names[reverse], name) {
			t.names[reverse] = append(t.names[reverse], name)
		}
	}
}

// lookup returns the addresses of name. "*.example.com." in the table stands for one
// label that is not there by itself.
func (t *table) lookup(name string) (addrs []netip.Addr, known bool) {
	if addrs, known = t.addrs[name]; known {
		return addrs, true
	}
	if i, end := dns.NextLabel(name, 0); !end {
		addrs, known = t.addrs["*."+name[i:]]
	}
	return addrs, known
}

func (t *table) reverse(name string) []string { return t.names[name] }
