package local

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// TemplateConfig is one template directive.
type TemplateConfig struct {
	// Zones are where it applies, in presentation format. None means everywhere.
	Zones []string
	// Class and Type are those of the questions it is for; "ANY" means all. An empty
	// Class means IN.
	Class, Type string
	// Match are regular expressions for the name in lower case with its final dot. None
	// means any name.
	Match []string
	// Answer, Authority and Additional are Go templates that make one record each, in
	// the form of a zone file.
	Answer, Authority, Additional []string
	// Rcode is the name of the response code. Empty means NOERROR.
	Rcode string
	// EDECode and EDEText are an extended error (RFC 8914). Zero means none.
	EDECode uint16
	EDEText string
	// Fallthrough are the zones in which a name that no expression matches is for the
	// next in line; elsewhere it is answered with SERVFAIL.
	Fallthrough []string
}

// Templates answers from templates, the first that fits.
type Templates struct {
	rules []templateRule
}

type templateRule struct {
	zones, through                []string
	class, rtype                  uint16
	match                         []*regexp.Regexp
	answer, authority, additional []*template.Template
	rcode                         int
	ede                           *dns.EDNS0_EDE
	private                       bool // the answer depends on the client
}

// templateData is what a template may refer to, by CoreDNS's names.
type templateData struct {
	Zone, Name, Class, Type string
	Match                   []string
	Group                   map[string]string
	Message                 *dns.Msg
	Question                *dns.Question
	Remote                  string
}

// NewTemplates returns an answerer for the directives of one server block. The error
// names every fault.
func NewTemplates(cfgs []TemplateConfig) (*Templates, error) {
	t := &Templates{}
	var errs []error
	for i, cfg := range cfgs {
		rule, err := newTemplateRule(cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("template %d: %w", i+1, err))
		}
		t.rules = append(t.rules, rule)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return t, nil
}

func newTemplateRule(cfg TemplateConfig) (templateRule, error) {
	var errs []error
	r := templateRule{zones: canonical(cfg.Zones), through: canonical(cfg.Fallthrough), class: dns.ClassINET}
	if len(r.zones) == 0 {
		r.zones = []string{"."}
	}
	if cfg.Class != "" {
		class, ok := dns.StringToClass[strings.ToUpper(cfg.Class)]
		if !ok {
			errs = append(errs, fmt.Errorf("unknown class %q", cfg.Class))
		}
		r.class = class
	}
	var ok bool
	if r.rtype, ok = typeByName(cfg.Type); !ok {
		errs = append(errs, fmt.Errorf("unknown type %q", cfg.Type))
	}
	if cfg.Rcode != "" {
		if r.rcode, ok = dns.StringToRcode[strings.ToUpper(cfg.Rcode)]; !ok || r.rcode > 15 {
			errs = append(errs, fmt.Errorf("unknown rcode %q", cfg.Rcode))
		}
	}
	if cfg.EDECode != 0 || cfg.EDEText != "" {
		r.ede = &dns.EDNS0_EDE{InfoCode: cfg.EDECode, ExtraText: cfg.EDEText}
	}
	match := cfg.Match
	if len(match) == 0 {
		match = []string{".*"}
	}
	for _, expr := range match {
		re, err := regexp.Compile(expr)
		if err != nil {
			errs = append(errs, fmt.Errorf("match: %w", err))
		}
		r.match = append(r.match, re)
	}
	for _, s := range []struct {
		name  string
		texts []string
		out   *[]*template.Template
	}{{"answer", cfg.Answer, &r.answer}, {"authority", cfg.Authority, &r.authority}, {"additional", cfg.Additional, &r.additional}} {
		for _, text := range s.texts {
			tmpl, err := template.New(s.name).Funcs(template.FuncMap{"parseInt": strconv.ParseUint}).Parse(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
			}
			*s.out = append(*s.out, tmpl)
			r.private = r.private || strings.Contains(text, ".Remote") || strings.Contains(text, ".Message")
		}
	}
	return r, errors.Join(errs...)
}

// typeByName knows the names of types and the form TYPE65280 (RFC 3597 section 5).
func typeByName(s string) (uint16, bool) {
	s = strings.ToUpper(s)
	if t, ok := dns.StringToType[s]; ok {
		return t, true
	}
	number, ok := strings.CutPrefix(s, "TYPE")
	n, err := strconv.ParseUint(number, 10, 16)
	return uint16(n), ok && err == nil
}

// Answer implements the resolver's interface for local answers.
func (t *Templates) Answer(query []byte, from wire.Origin) (out []byte, keep bool) {
	m, ok := read(query)
	if !ok {
		return nil, false
	}
	for i := range t.rules {
		r := &t.rules[i]
		zone, ok := r.applies(m.Question[0])
		if !ok {
			continue
		}
		data, ok := r.matches(m, zone, from)
		if ok {
			return pack(m, r.make(m, data)), !r.private
		}
		if _, through := zoneOf(m.Question[0].Name, r.through); !through {
			return pack(m, new(dns.Msg).SetRcode(m, dns.RcodeServerFailure)), true
		}
	}
	return nil, false
}

// applies tells whether the rule is for a question at all, and in which zone.
func (r *templateRule) applies(q dns.Question) (zone string, ok bool) {
	if r.class != dns.ClassANY && q.Qclass != r.class {
		return "", false
	}
	if r.rtype != dns.TypeANY && q.Qtype != dns.TypeANY && q.Qtype != r.rtype {
		return "", false
	}
	return zoneOf(q.Name, r.zones)
}

// matches returns what the templates need if an expression matches the name.
func (r *templateRule) matches(m *dns.Msg, zone string, from wire.Origin) (*templateData, bool) {
	q := &m.Question[0]
	for _, re := range r.match {
		groups := re.FindStringSubmatch(q.Name)
		if groups == nil {
			continue
		}
		data := &templateData{
			Zone: zone, Name: q.Name, Class: dns.Class(q.Qclass).String(), Type: dns.Type(q.Qtype).String(),
			Match: groups, Group: make(map[string]string), Message: m, Question: q,
			Remote: from.Client.Addr().Unmap().String(),
		}
		if q.Qtype == dns.TypeANY {
			data.Type = dns.Type(r.rtype).String()
		}
		for i, name := range re.SubexpNames() {
			data.Group[strconv.Itoa(i)] = groups[i]
			if name != "" {
				data.Group[name] = groups[i]
			}
		}
		return data, true
	}
	return nil, false
}

// make makes the reply; a template that fails makes it SERVFAIL.
func (r *templateRule) make(query *dns.Msg, data *templateData) *dns.Msg {
	m := reply(query)
	m.Rcode = r.rcode
	for _, s := range []struct {
		from []*template.Template
		to   *[]dns.RR
	}{{r.answer, &m.Answer}, {r.authority, &m.Ns}, {r.additional, &m.Extra}} {
		for _, tmpl := range s.from {
			rr, err := record(tmpl, data)
			if err != nil {
				return new(dns.Msg).SetRcode(query, dns.RcodeServerFailure)
			}
			*s.to = append(*s.to, rr)
		}
	}
	if r.ede != nil {
		m.SetEdns0(wire.EDNSSize, false)
		opt := m.IsEdns0()
		opt.Option = append(opt.Option, r.ede)
	}
	return m
}

func record(tmpl *template.Template, data *templateData) (dns.RR, error) {
	var text bytes.Buffer
	if err := tmpl.Execute(&text, data); err != nil {
		return nil, fmt.Errorf("executing template: %w", err)
	}
	rr, err := dns.NewRR(text.String())
	if err == nil && rr == nil {
		err = errors.New("no record")
	}
	return rr, err
}
