package main

import (
	"encoding/binary"
	"io"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/resolve"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

// The formats of the log directive, as CoreDNS has them.
const (
	commonLog   = `{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" {rcode} {>rflags} {rsize} {duration}`
	combinedLog = commonLog + ` "{>opcode}"`
)

// queryLog makes the function that logs queries, nil if nothing is to be logged. The lines have CoreDNS's form and go where
// CoreDNS writes them, because there are programs that read them. The first rule that fits a query decides. out is written to
// from many goroutines, and must not block.
func queryLog(rules []corefile.LogRule, out io.Writer) func(resolve.LogRecord) {
	if len(rules) == 0 {
		return nil
	}
	var compiled []logRule
	for _, r := range rules {
		compiled = append(compiled, newLogRule(r))
	}
	return func(rec resolve.LogRecord) {
		class := responseClass(rec)
		for _, r := range compiled {
			if !r.fits(rec.Name, class) {
				continue
			}
			line := "[INFO] " + r.line(rec) + "\n"
			_, _ = io.WriteString(out, line)
			return
		}
	}
}

type logRule struct {
	names   []string
	classes map[string]bool
	parts   []func(resolve.LogRecord) string
}

func newLogRule(r corefile.LogRule) logRule {
	format := r.Format
	if format == "" {
		format = commonLog
	}
	format = strings.NewReplacer("{common}", commonLog, "{combined}", combinedLog).Replace(format)
	rule := logRule{names: r.Names, classes: make(map[string]bool)}
	for _, c := range r.Classes {
		rule.classes[c] = true
	}
	for format != "" {
		start := strings.IndexByte(format, '{')
		end := strings.IndexByte(format, '}')
		if start < 0 || end < start {
			break
		}
		rule.literal(format[:start])
		rule.parts = append(rule.parts, logField(format[start+1:end]))
		format = format[end+1:]
	}
	rule.literal(format)
	return rule
}

func (r *logRule) literal(s string) {
	if s != "" {
		r.parts = append(r.parts, func(resolve.LogRecord) string { return s })
	}
}

func (r *logRule) fits(name, class string) bool {
	if !r.classes["all"] && !r.classes[class] {
		return false
	}
	for _, n := range r.names {
		if n == "." || name == n || strings.HasSuffix(name, "."+n) {
			return true
		}
	}
	return false
}

func (r *logRule) line(rec resolve.LogRecord) string {
	var b strings.Builder
	for _, p := range r.parts {
		b.WriteString(p(rec))
	}
	return b.String()
}

// responseClass sorts a reply as the class option does.
func responseClass(rec resolve.LogRecord) string {
	switch {
	case rec.Rcode == wire.NXDomain:
		return "denial"
	case rec.Rcode != wire.NoError:
		return "error"
	case len(rec.Reply) >= 12 && binary.BigEndian.Uint16(rec.Reply[6:]) == 0:
		return "denial"
	}
	return "success"
}

// logField gives the value of one placeholder; an unknown one is a dash, as in CoreDNS.
func logField(name string) func(resolve.LogRecord) string {
	switch name {
	case "type":
		return func(r resolve.LogRecord) string { return r.Type }
	case "name":
		return func(r resolve.LogRecord) string { return r.Name }
	case "class":
		return func(r resolve.LogRecord) string { return r.Class }
	case "proto":
		return func(r resolve.LogRecord) string {
			if r.Origin.Transport == wire.TCP {
				return "tcp"
			}
			return "udp"
		}
	case "remote":
		return func(r resolve.LogRecord) string {
			a := r.Origin.Client.Addr().Unmap()
			if a.Is6() {
				return "[" + a.String() + "]"
			}
			return a.String()
		}
	case "port":
		return func(r resolve.LogRecord) string { return strconv.Itoa(int(r.Origin.Client.Port())) }
	case "size":
		return func(r resolve.LogRecord) string { return strconv.Itoa(len(r.Query)) }
	case "rsize":
		return func(r resolve.LogRecord) string { return strconv.Itoa(len(r.Reply)) }
	case "rcode":
		return func(r resolve.LogRecord) string { return r.Rcode.String() }
	case "duration":
		return func(r resolve.LogRecord) string { return strconv.FormatFloat(r.Took.Seconds(), 'f', -1, 64) + "s" }
	case ">rflags":
		return func(r resolve.LogRecord) string { return flagNames(r.Reply) }
	case ">id":
		return func(r resolve.LogRecord) string {
			if len(r.Query) < 2 {
				return "-"
			}
			return strconv.Itoa(int(binary.BigEndian.Uint16(r.Query)))
		}
	case ">do":
		return func(r resolve.LogRecord) string { return strconv.FormatBool(r.DO) }
	case ">bufsize":
		return func(r resolve.LogRecord) string { return strconv.Itoa(bufSize(r.Query)) }
	case ">opcode":
		return func(resolve.LogRecord) string { return "0" } // no other opcode gets this far
	}
	return func(resolve.LogRecord) string { return "-" }
}

// flagNames lists the flags of a reply's header (RFC 1035 s4.1.1, RFC 4035 s3).
func flagNames(msg []byte) string {
	if len(msg) < 4 {
		return "-"
	}
	bits := binary.BigEndian.Uint16(msg[2:])
	var out []string
	for _, f := range []struct {
		bit  uint16
		name string
	}{{1 << 15, "qr"}, {1 << 10, "aa"}, {1 << 9, "tc"}, {1 << 8, "rd"}, {1 << 7, "ra"}, {1 << 6, "z"}, {1 << 5, "ad"}, {1 << 4, "cd"}} {
		if bits&f.bit != 0 {
			out = append(out, f.name)
		}
	}
	return strings.Join(out, ",")
}

// bufSize is the UDP size a query offers (RFC 6891 s6.2.3), 512 without EDNS.
func bufSize(query []byte) int {
	var m dns.Msg
	if err := m.Unpack(query); err == nil {
		if opt := m.IsEdns0(); opt != nil {
			return int(opt.UDPSize())
		}
	}
	return dns.MinMsgSize
}
