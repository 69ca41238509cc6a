package corefile

import (
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// integer reads a number between least and most.
func (d *directive) integer(w word, what string, least, most int) int {
	n, err := strconv.Atoi(w.text)
	if err != nil || n < least || n > most {
		if most == math.MaxInt {
			d.failAt(w, "%s %q; allowed: a whole number from %d", what, w.text, least)
		} else {
			d.failAt(w, "%s %q; allowed: a whole number from %d to %d", what, w.text, least, most)
		}
		return least
	}
	return n
}

// seconds reads a number of seconds.
func (d *directive) seconds(w word, what string, least int) time.Duration {
	return time.Duration(d.integer(w, what, least, math.MaxInt32)) * time.Second
}

// duration reads a duration such as 30s or 1m30s between least and most.
func (d *directive) duration(w word, what string, least, most time.Duration) time.Duration {
	v, err := time.ParseDuration(w.text)
	switch {
	case err == nil && v >= least && v <= most:
		return v
	case most == math.MaxInt64:
		d.failAt(w, "%s %q; allowed: a duration such as 500ms, 30s, 1h, at least %v", what, w.text, least)
	default:
		d.failAt(w, "%s %q; allowed: a duration such as 500ms, 30s, 1h, from %v to %v", what, w.text, least, most)
	}
	return least
}

// listenAddr checks host:port of a web server; the host may be empty, an address or localhost.
func (d *directive) listenAddr(w word) string {
	host, port, err := net.SplitHostPort(w.text)
	if err != nil {
		d.failAt(w, "address %q; allowed: IP:port or :port", w.text)
		return w.text
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" {
		d.failAt(w, "address %q: %q is no IP address; allowed: IP:port, localhost:port or :port", w.text, host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		d.failAt(w, "address %q: port %q; allowed: 1 to 65535", w.text, port)
	}
	return w.text
}

// choice reads one of several words.
func (d *directive) choice(w word, what string, allowed ...string) string {
	for _, a := range allowed {
		if strings.EqualFold(w.text, a) {
			return a
		}
	}
	d.failAt(w, "%s %q; %s", what, w.text, oneOf(allowed...))
	return allowed[0]
}

// rcodes reads response codes by their names.
func (d *directive) rcodes(args []word) []string {
	var out []string
	for _, a := range args {
		if name := strings.ToUpper(a.text); isRcode(name) {
			out = append(out, name)
		} else {
			d.failAt(a, "response code %q; %s", a.text, oneOf(rcodeNames()...))
		}
	}
	return out
}

// rcodeNames are the names of RFC 6895 s2.3 and later that fit a reply's header.
func rcodeNames() []string {
	return []string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "YXDOMAIN", "YXRRSET", "NXRRSET", "NOTAUTH", "NOTZONE"}
}

func isRcode(name string) bool { return slices.Contains(rcodeNames(), name) }
