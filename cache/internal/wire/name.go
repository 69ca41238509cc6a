package wire

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/miekg/dns"
)

const (
	headerLen  = 12
	maxNameLen = 255 // octets on the wire, RFC 1035 section 3.1
)

// skipName returns the offset behind the name at off and the length of the name
// written out. Pointers must go strictly backwards, so that a reply stays sound when
// its end is cut off, and a walk ends. ok is false for anything else.
func skipName(msg []byte, off int) (next, length int, ok bool) {
	limit := off
	for {
		if off >= len(msg) {
			return 0, 0, false
		}
		c := int(msg[off])
		switch {
		case c == 0:
			length++
			if next == 0 {
				next = off + 1
			}
			return next, length, length <= maxNameLen
		case c < 0x40:
			off += c + 1
			length += c + 1
		case c >= 0xc0:
			if off+1 >= len(msg) {
				return 0, 0, false
			}
			if next == 0 {
				next = off + 2
			}
			off = (c&0x3f)<<8 | int(msg[off+1])
			if off < headerLen || off >= limit {
				return 0, 0, false
			}
			limit = off
		default:
			return 0, 0, false
		}
		if length >= maxNameLen {
			return 0, 0, false
		}
	}
}

// spelled appends the name at off written out. The name has been checked.
func spelled(dst, msg []byte, off int) []byte {
	for {
		c := int(msg[off])
		switch {
		case c == 0:
			return append(dst, 0)
		case c >= 0xc0:
			off = (c&0x3f)<<8 | int(msg[off+1])
		default:
			dst = append(dst, msg[off:off+1+c]...)
			off += 1 + c
		}
	}
}

// expand appends the name at off written out and folded. The name has been checked.
func expand(dst, msg []byte, off int) []byte {
	at := len(dst)
	dst = spelled(dst, msg, off)
	fold(dst[at:], dst[at:])
	return dst
}

// ParseName returns the folded wire form of a name in presentation format; the final
// dot may be missing.
func ParseName(s string) ([]byte, error) {
	name, err := packName(s)
	if err != nil {
		return nil, err
	}
	fold(name, name)
	return name, nil
}

// packName is ParseName with the letter case as it is.
func packName(s string) ([]byte, error) {
	buf := make([]byte, maxNameLen+2)
	n, err := dns.PackDomainName(dns.Fqdn(s), buf, 0, nil, false)
	switch {
	case s == "":
		err = errors.New("empty")
	case err == nil && n > maxNameLen: // the library lets 256 octets through
		err = fmt.Errorf("longer than %d octets", maxNameLen)
	}
	if err != nil {
		return nil, fmt.Errorf("parsing name %q: %w", s, err)
	}
	return buf[:n:n], nil
}

// FormatName returns the presentation format of a name in wire form without pointers,
// odd octets escaped, with the final dot.
func FormatName(name []byte) string {
	s, _, err := dns.UnpackDomainName(name, 0)
	if err != nil {
		return "."
	}
	return s
}

// Under tells whether name lies in zone, label by label; both are folded wire forms.
func Under(name, zone []byte) bool {
	off := len(name) - len(zone)
	if off < 0 || !bytes.Equal(name[off:], zone) {
		return false
	}
	// Equal octets are not enough: "\x07cluster" may be the middle of a label.
	for at := 0; at <= off; at += int(name[at]) + 1 {
		if at == off {
			return true
		}
	}
	return false
}
