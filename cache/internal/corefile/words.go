package corefile

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// expandEnv replaces {$NAME} and {%NAME%} by the variable's value. The value stays inside the word whatever it holds, is not
// looked into again (a variable that names itself would never end), and must not be missing or empty where it is the word.
// What is no variable name is left alone, so that a Go template such as {{$x := .Name}} survives.
func expandEnv(word string, env func(string) (string, bool)) (string, error) {
	var out strings.Builder
	rest, last := word, ""
	for {
		start, name, end := nextVariable(rest)
		if start < 0 {
			break
		}
		value, ok := env(name)
		if !ok {
			return "", fmt.Errorf("the environment variable %s of %q is not set", name, word)
		}
		last = name
		out.WriteString(rest[:start])
		out.WriteString(value)
		rest = rest[end:]
	}
	out.WriteString(rest)
	if out.Len() == 0 && last != "" {
		return "", fmt.Errorf("the environment variable %s of %q is empty", last, word)
	}
	return out.String(), nil
}

// nextVariable finds the first {$NAME} or {%NAME%} of s; start is -1 when there is none.
func nextVariable(s string) (start int, name string, end int) {
	for i := 0; i+2 < len(s); i++ {
		if s[i] != '{' || s[i+1] != '$' && s[i+1] != '%' {
			continue
		}
		closing := "}"
		if s[i+1] == '%' {
			closing = "%}"
		}
		n := strings.Index(s[i+2:], closing)
		if n > 0 && isVariableName(s[i+2:i+2+n]) {
			return i, s[i+2 : i+2+n], i + 2 + n + len(closing)
		}
	}
	return -1, "", 0
}

func isVariableName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// The placeholders of the incumbent's Corefile.
const (
	pillarDomain   = "__PILLAR__DNS__DOMAIN__"
	pillarLocal    = "__PILLAR__LOCAL__DNS__"
	pillarServer   = "__PILLAR__DNS__SERVER__"
	pillarCluster  = "__PILLAR__CLUSTER__DNS__"
	pillarUpstream = "__PILLAR__UPSTREAM__SERVERS__"
)

// word is a token after replacement, with where its value came from.
type word struct {
	text   string
	pos    Pos
	pillar string // the placeholder it stands for, if it is nothing but one
}

// fill replaces placeholders. A word that is a placeholder becomes as many words as the placeholder has values, perhaps none;
// inside a longer word (…:53) the first value is used, because a word stays a word.
func (o *Options) fill(t token) ([]word, error) {
	text, err := expandEnv(t.text, o.Env)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(text, "__PILLAR__") {
		return []word{{text: text, pos: t.pos}}, nil
	}
	if values, known := o.pillar(text); known {
		if values == nil {
			return nil, o.missing(text)
		}
		words := make([]word, 0, len(values))
		for _, v := range values {
			words = append(words, word{text: v, pos: t.pos, pillar: text})
		}
		return words, nil
	}
	for _, name := range placeholderPattern().FindAllString(text, -1) {
		values, known := o.pillar(name)
		switch {
		case !known:
			return nil, fmt.Errorf("unknown placeholder %s; known: %s", name,
				strings.Join([]string{pillarDomain, pillarLocal, pillarServer, pillarCluster, pillarUpstream}, ", "))
		case len(values) == 0:
			return nil, o.missing(name)
		}
		value := values[0]
		if strings.Contains(value, ":") && strings.Contains(text, name+":") {
			value = "[" + value + "]" // an IPv6 address before a port
		}
		text = strings.Replace(text, name, value, 1)
	}
	return []word{{text: text, pos: t.pos}}, nil
}

func placeholderPattern() *regexp.Regexp {
	return regexp.MustCompile(`__PILLAR__[A-Z0-9]+(?:__?[A-Z0-9]+)*(?:__)?`)
}

// pillar gives the values of a placeholder. nil means that nobody knows them; an empty list is a value.
func (o *Options) pillar(name string) (values []string, known bool) {
	switch name {
	case pillarDomain:
		return []string{o.Domain}, true
	case pillarLocal:
		return addrStrings(o.LocalIPs), true
	case pillarServer:
		return append([]string{}, addrStrings(o.ServerIPs)...), true
	case pillarCluster:
		if len(o.ClusterDNS) == 0 && o.KeepUnknown {
			return []string{pillarCluster}, true
		}
		return addrStrings(o.ClusterDNS), true
	case pillarUpstream:
		if len(o.KubeDNS.Upstreams) > 0 {
			return addrPortStrings(o.KubeDNS.Upstreams), true
		}
		return []string{o.ResolvConf}, true
	}
	return nil, false
}

func (o *Options) missing(name string) error {
	hint := o.Hints[name]
	if hint == "" {
		hint = "no value is known for it"
	}
	return fmt.Errorf("%s cannot be replaced: %s", name, hint)
}

func addrStrings(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

func addrPortStrings(addrs []netip.AddrPort) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, hostPort(a, 53))
	}
	return out
}

// hostPort writes an address, and its port unless it is the usual one.
func hostPort(a netip.AddrPort, usual uint16) string {
	if a.Port() == usual {
		return a.Addr().String()
	}
	return a.String()
}
