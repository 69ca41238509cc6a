package corefile

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// parseName checks a domain name and gives its canonical text: lower case, absolute, escaped as in a zone file. The limits
// are those of the wire (RFC 1035 s2.3.4: 63 octets a label, 255 a name), not of the text, which escapes make longer.
func parseName(s string) (string, error) {
	if s == "." {
		return ".", nil
	}
	if s == "" {
		return "", errors.New("empty name")
	}
	var out strings.Builder
	label, total := 0, 1 // the root's length octet
	for i := 0; i < len(s); {
		if s[i] == '.' {
			if label == 0 {
				return "", fmt.Errorf("%q has an empty label", s)
			}
			total, label = total+1+label, 0
			out.WriteByte('.')
			i++
			continue
		}
		c, n, err := nameOctet(s[i:])
		if err != nil {
			return "", fmt.Errorf("%q: %w", s, err)
		}
		if label++; label > 63 {
			return "", fmt.Errorf("%q has a label of more than 63 octets", s)
		}
		writeOctet(&out, c)
		i += n
	}
	if label > 0 {
		total += 1 + label
		out.WriteByte('.')
	}
	if total > 255 {
		return "", fmt.Errorf("%q is longer than 255 octets", s)
	}
	return out.String(), nil
}

// special are octets that mean something else in a Corefile: in a name they are written \DDD only.
const special = `{}/:"(),`

// nameOctet reads one octet of a label and says how much text it took.
func nameOctet(s string) (c byte, n int, err error) {
	switch {
	case s[0] == '\\' && len(s) >= 4 && isDigit(s[1]) && isDigit(s[2]) && isDigit(s[3]):
		v, err := strconv.ParseUint(s[1:4], 10, 8)
		return byte(v), 4, err
	case s[0] == '\\' && len(s) >= 2:
		return s[1], 2, nil
	case s[0] == '\\':
		return 0, 0, errors.New("\\ at the end")
	case s[0] <= ' ' || s[0] == 0x7f:
		return 0, 0, errors.New(`white space and control characters are written \DDD`)
	case s[0] >= 0x80:
		return 0, 0, errors.New("only ASCII; write an internationalised name in its xn-- form")
	case strings.IndexByte(special, s[0]) >= 0:
		return 0, 0, fmt.Errorf("%q in a name is written \\%03d (a brace or comma that ends the name needs a space before it)", s[0], s[0])
	}
	return s[0], 1, nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func writeOctet(out *strings.Builder, c byte) {
	switch {
	case 'A' <= c && c <= 'Z':
		out.WriteByte(c + 'a' - 'A') // RFC 4343: only ASCII letters fold
	case strings.IndexByte(`.\;@$`, c) >= 0:
		out.WriteByte('\\')
		out.WriteByte(c)
	case c <= ' ' || c >= 0x7f || strings.IndexByte(special+"#", c) >= 0:
		fmt.Fprintf(out, `\%03d`, c)
	default:
		out.WriteByte(c)
	}
}

// parseKey reads a zone with an optional scheme before and port behind: dns://cluster.local:53. A network in CIDR form gives
// its reverse zones.
func parseKey(s string, port uint16) ([]Zone, error) {
	rest := s
	if scheme, after, ok := strings.Cut(s, "://"); ok {
		switch strings.ToLower(scheme) {
		case "dns":
			rest = after
		default:
			return nil, fmt.Errorf("%q: zones are served over plain DNS only; allowed: dns:// or nothing (tls:// is for the targets of forward)", s)
		}
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.Contains(rest[i:], "/") {
		n, err := strconv.ParseUint(rest[i+1:], 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q: port %q; allowed: 1 to 65535", s, rest[i+1:])
		}
		rest, port = rest[:i], uint16(n)
	}
	names, err := parseOrigin(rest)
	if err != nil {
		return nil, err
	}
	zones := make([]Zone, len(names))
	for i, n := range names {
		zones[i] = Zone{n, port}
	}
	return zones, nil
}

// parseOrigin reads a domain name, or a network as the reverse zones that cover exactly it.
func parseOrigin(s string) ([]string, error) {
	if !strings.Contains(s, "/") {
		n, err := parseName(s)
		if err != nil {
			return nil, err
		}
		return []string{n}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return nil, fmt.Errorf("network %q: allowed: an address and a length, 10.0.0.0/0 to /32 or fd00::/0 to /128", s)
	}
	return reverseZones(p.Masked()), nil
}

// reverseZones gives the zones of in-addr.arpa (RFC 1035 s3.5, cut at octets) or ip6.arpa (RFC 3596 s2.5, cut at nibbles)
// whose union is p: a length between two cuts is split, never widened.
func reverseZones(p netip.Prefix) []string {
	step, suffix := 8, "in-addr.arpa."
	if !p.Addr().Is4() {
		step, suffix = 4, "ip6.arpa."
	}
	depth := (p.Bits() + step - 1) / step
	addr := p.Addr().AsSlice()
	zones := make([]string, 0, 1<<(depth*step-p.Bits()))
	for range cap(zones) {
		var z strings.Builder
		for i := depth - 1; i >= 0; i-- {
			if step == 8 {
				fmt.Fprintf(&z, "%d.", addr[i])
			} else {
				fmt.Fprintf(&z, "%x.", addr[i/2]>>(4*(1-i%2))&0xf)
			}
		}
		zones = append(zones, z.String()+suffix)
		if depth == 0 {
			break
		}
		if i := depth - 1; step == 8 {
			addr[i]++
		} else {
			addr[i/2] += 1 << (4 * (1 - i%2))
		}
	}
	return zones
}
