package corefile

import (
	"fmt"
	"net/netip"
	"strings"
)

// bind ADDRESS|INTERFACE... { except ADDRESS|INTERFACE... }
//
// Placeholders that stand for nothing vanish; so "bind 169.254.25.10 __PILLAR__DNS__SERVER__" is one address in IPVS mode.
// An address given twice counts once.
func (d *directive) bind() []Bind {
	d.want(1, -1, "an address or the name of an interface")
	out := d.bindTargets(d.args, false)
	for _, sub := range d.sub {
		if name := d.option(sub); name != "except" {
			d.unknownOption(sub, name, "except")
			continue
		}
		sub.want(1, -1, "an address or the name of an interface")
		out = append(out, sub.bindTargets(sub.args, true)...)
	}
	return out
}

func (d *directive) bindTargets(args []word, except bool) []Bind {
	var out []Bind
	seen := make(map[string]bool)
	for _, a := range args {
		addr, err := netip.ParseAddr(a.text)
		b := Bind{Addr: addr.Unmap(), Except: except}
		switch {
		case err == nil && addr.IsMulticast():
			d.failAt(a, "%q is a multicast address", a.text)
			continue
		case err == nil && addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
			d.failAt(a, "%q is link-local and needs its interface (%s%%eth0); Pods cannot use it, a unique local address (fd00::/8) is better", a.text, a.text)
			continue
		case err != nil && isInterfaceName(a.text):
			b = Bind{Interface: a.text, Except: except}
		case err != nil:
			d.failAt(a, "%q is neither an IP address nor the name of an interface", a.text)
			continue
		}
		if key := b.String(); !seen[key] {
			seen[key] = true
			out = append(out, b)
		}
	}
	return out
}

func (b Bind) String() string {
	if b.Interface != "" {
		return b.Interface
	}
	return b.Addr.String()
}

// isInterfaceName allows what Linux allows (dev_valid_name), less what can only be a mistyped address.
func isInterfaceName(s string) bool {
	return s != "" && len(s) < 16 && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r{}\"%") &&
		strings.Trim(s, "0123456789.") != ""
}

// checkOverlaps finds zones that two blocks, or two keys of one, claim on the same port and address.
func (p *parser) checkOverlaps(blocks []*Block) {
	type place struct {
		zone Zone
		on   string
	}
	owner := make(map[place]Pos)
	anywhere := make(map[Zone]Pos) // first block that has the zone, whatever it binds
	for _, b := range blocks {
		where := []string{""}
		if len(b.Bind) > 0 {
			where = nil
			for _, t := range b.Bind {
				if !t.Except {
					where = append(where, t.String())
				}
			}
		}
		for _, z := range b.Zones {
			first, ok := anywhere[z]
			for _, on := range where {
				at := place{z, on}
				if prev, dup := owner[at]; dup {
					p.problems.add(b.Pos, "", "zone %s is a duplicate: it is already served on port %d%s by the block of line %d", z.Name, z.Port, onAddress(on), prev.Line)
				} else if wild, dup := owner[place{z, ""}]; ok && (on == "" || dup) {
					if dup {
						first = wild
					}
					p.problems.add(b.Pos, "", "zone %s:%d overlaps with the block of line %d: one of them has no bind and so takes every address", z.Name, z.Port, first.Line)
				}
				owner[at] = b.Pos
			}
			if !ok {
				anywhere[z] = b.Pos
			}
		}
	}
}

func onAddress(on string) string {
	if on == "" {
		return ""
	}
	return fmt.Sprintf(" of %s", on)
}
