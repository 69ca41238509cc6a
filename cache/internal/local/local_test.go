package local

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

type answerer interface {
	Answer(query []byte, from wire.Origin) (reply []byte, keep bool)
}

// ask returns the reply in words, or "" when the question is for the next in line.
func ask(t *testing.T, a answerer, name, qtype, client string) (text string, keep bool) {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.StringToType[qtype])
	q, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	reply, keep := a.Answer(q, wire.Origin{Client: netip.MustParseAddrPort(client)})
	if reply == nil {
		return "", keep
	}
	var r dns.Msg
	if err := r.Unpack(reply); err != nil {
		t.Fatal(err)
	}
	if r.Id != m.Id || !r.Response || r.Question[0] != m.Question[0] {
		t.Errorf("reply %v to %v", &r, m)
	}
	out := []string{dns.RcodeToString[r.Rcode]}
	for _, rr := range slices.Concat(r.Answer, r.Ns, r.Extra) {
		if rr.Header().Rrtype != dns.TypeOPT {
			out = append(out, strings.ReplaceAll(rr.String(), "\t", " "))
		}
	}
	if opt := r.IsEdns0(); opt != nil {
		out = append(out, opt.Option[0].String())
	}
	return strings.Join(out, "; "), keep
}

const someone = "10.0.0.1:4000"

func newTemplates(t *testing.T, cfgs ...TemplateConfig) *Templates {
	t.Helper()
	a, err := NewTemplates(cfgs)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestP32_TemplateForAMissingType is the line that is found in many clusters.
func TestP32_TemplateForAMissingType(t *testing.T) {
	a := newTemplates(t, TemplateConfig{Class: "IN", Type: "AAAA", Rcode: "NOERROR"})
	if got, keep := ask(t, a, "example.test.", "AAAA", someone); got != "NOERROR" || !keep {
		t.Errorf("AAAA: %q, keep %v", got, keep)
	}
	for _, qtype := range []string{"A", "HTTPS", "TXT"} {
		if got, _ := ask(t, a, "example.test.", qtype, someone); got != "" {
			t.Errorf("%s: %q", qtype, got)
		}
	}
}

func TestTemplates(t *testing.T) {
	a := newTemplates(t,
		TemplateConfig{
			Type: "A", Zones: []string{"ip.Test"}, Fallthrough: []string{"ip.test"},
			Match:  []string{`^(?P<a>\d+)-(?P<b>\d+)\.ip\.test\.$`, `^short\.`},
			Answer: []string{`{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{ index .Match 2 }}`},
		},
		TemplateConfig{
			Class: "ANY", Type: "ANY", Zones: []string{"invalid"}, Rcode: "nxdomain", EDECode: 21, EDEText: "reserved",
			Authority: []string{"invalid. 60 {{ .Class }} SOA ns.invalid. h.invalid. (1 60 60 60 60)"},
		},
		TemplateConfig{Type: "TXT", Zones: []string{"me.test"}, Answer: []string{`{{ .Name }} 60 IN TXT "{{ .Remote }} {{ .Zone }} {{ .Type }}"`}},
		TemplateConfig{Type: "TYPE65280", Match: []string{"^never$"}},
		TemplateConfig{Type: "MX", Answer: []string{"not a record"}},
		TemplateConfig{Type: "PTR", Additional: []string{`{{ .Name }} 60 IN TXT "{{ parseInt "ff" 16 8 }}"`}},
	)
	for _, c := range []struct {
		name, qtype, want string
		keep              bool
	}{
		{"3-4.ip.test.", "A", "NOERROR; 3-4.ip.test. 60 IN A 10.0.3.4", true},
		{"3-4.ip.test.", "AAAA", "", false},
		{"other.ip.test.", "A", "", false},        // fallthrough
		{"short.ip.test.", "A", "SERVFAIL", true}, // the template does not fit its expression
		{"3-4.ip.test.example.", "A", "", false},  // another zone
		{"x.invalid.", "HTTPS", "NXDOMAIN; invalid. 60 IN SOA ns.invalid. h.invalid. 1 60 60 60 60; 21 (Not Supported): (reserved)", true},
		{"me.test.", "TXT", `NOERROR; me.test. 60 IN TXT "10.0.0.1 me.test. TXT"`, false},
		{"x.test.", "MX", "SERVFAIL", true},
		{"x.test.", "PTR", `NOERROR; x.test. 60 IN TXT "255"`, true},
	} {
		got, keep := ask(t, a, c.name, c.qtype, someone)
		if got != c.want || keep != c.keep {
			t.Errorf("%s %s: %q, keep %v; want %q", c.name, c.qtype, got, keep, c.want)
		}
	}
	// No expression matches and nothing falls through.
	q := []byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 'x', 0, 0xff, 0, 0, 1}
	if reply, _ := a.Answer(q, wire.Origin{}); len(reply) < 12 || reply[3]&15 != dns.RcodeServerFailure {
		t.Errorf("unmatched: %x", reply)
	}
}

func TestTemplatesNameEveryFault(t *testing.T) {
	_, err := NewTemplates([]TemplateConfig{
		{Class: "XX", Type: "A"}, {Type: "NOTYPE"}, {Type: "A", Rcode: "WHAT"}, {Type: "A", Match: []string{"("}}, {Type: "A", Answer: []string{"{{"}},
	})
	for _, want := range []string{`class "XX"`, `type "NOTYPE"`, `rcode "WHAT"`, "template 4: match", "template 5: answer"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}

func TestHosts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	write(t, file, "# comment\n127.0.0.1 localhost\n192.0.2.1\tOne.test alias.test # two names\n2001:db8::1 one.test\n192.0.2.7 one.test\n192.0.2.9 *.wild.test\nbroken line\n300.1.1.1 bad.test\nfe80::1%eth0 local.test\n192.0.2.5 both.test\n")
	h := NewHosts(HostsConfig{File: file, Inline: []string{"192.0.2.6 both.test"}, Zones: []string{"test"}, Fallthrough: []string{"fall.test"}, TTL: time.Minute})
	for _, c := range []struct{ name, qtype, want string }{
		{"one.test.", "A", "NOERROR; one.test. 60 IN A 192.0.2.1; one.test. 60 IN A 192.0.2.7"},
		{"one.test.", "AAAA", "NOERROR; one.test. 60 IN AAAA 2001:db8::1"},
		{"alias.test.", "AAAA", "NOERROR"}, // the name exists
		{"alias.test.", "TXT", "NOERROR"},
		{"x.wild.test.", "A", "NOERROR; x.wild.test. 60 IN A 192.0.2.9"},
		{"y.x.wild.test.", "A", "SERVFAIL"},
		{"wild.test.", "A", "SERVFAIL"},
		{"unknown.test.", "A", "SERVFAIL"},
		{"x.fall.test.", "A", ""},
		{"localhost.", "A", ""}, // not in the zone
		{"bad.test.", "A", "SERVFAIL"},
		{"local.test.", "AAAA", "NOERROR; local.test. 60 IN AAAA fe80::1"},
		{"both.test.", "A", "NOERROR; both.test. 60 IN A 192.0.2.6"}, // inline wins
		{"1.2.0.192.in-addr.arpa.", "PTR", "NOERROR; 1.2.0.192.in-addr.arpa. 60 IN PTR one.test.; 1.2.0.192.in-addr.arpa. 60 IN PTR alias.test."},
		{"9.2.0.192.in-addr.arpa.", "PTR", ""}, // wildcards have none
		{"8.2.0.192.in-addr.arpa.", "PTR", ""},
	} {
		if got, _ := ask(t, h, c.name, c.qtype, someone); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.name, c.qtype, got, c.want)
		}
	}
	h = NewHosts(HostsConfig{File: file, NoReverse: true, Fallthrough: []string{"."}, FallthroughUnsupported: true})
	for _, c := range []struct{ name, qtype, want string }{
		{"1.2.0.192.in-addr.arpa.", "PTR", ""}, {"one.test.", "TXT", ""}, {"alias.test.", "AAAA", "NOERROR"}, {"unknown.test.", "A", ""},
	} {
		if got, _ := ask(t, h, c.name, c.qtype, someone); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.name, c.qtype, got, c.want)
		}
	}
}

func TestHostsFollowsItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	synctest.Test(t, func(t *testing.T) {
		h := NewHosts(HostsConfig{File: file, Inline: []string{"192.0.2.1 inline.test"}, Reload: 5 * time.Second})
		want := func(name, addr string) {
			t.Helper()
			got, _ := ask(t, h, name, "A", someone)
			if addr == "" && got != "SERVFAIL" || addr != "" && !strings.HasSuffix(got, " "+addr) {
				t.Errorf("%s: %q, want %q", name, got, addr)
			}
		}
		want("a.test.", "")
		write(t, file, "192.0.2.2 a.test\n")
		want("a.test.", "") // not looked at yet
		time.Sleep(5 * time.Second)
		want("a.test.", "192.0.2.2")
		want("inline.test.", "192.0.2.1")
		write(t, file, "192.0.2.33 a.test\n")
		time.Sleep(5 * time.Second)
		want("a.test.", "192.0.2.33")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		want("a.test.", "")
		want("inline.test.", "192.0.2.1")
	})
}

func TestWhoAmI(t *testing.T) {
	for client, want := range map[string]string{
		"192.0.2.8:4000":      "NOERROR; x.test. 0 IN A 192.0.2.8; _udp.x.test. 0 IN SRV 0 0 4000 .",
		"[2001:db8::8]:53":    "NOERROR; x.test. 0 IN AAAA 2001:db8::8; _udp.x.test. 0 IN SRV 0 0 53 .",
		"[::ffff:10.0.0.1]:1": "NOERROR; x.test. 0 IN A 10.0.0.1; _udp.x.test. 0 IN SRV 0 0 1 .",
	} {
		if got, keep := ask(t, WhoAmI{}, "x.test.", "A", client); got != want || keep {
			t.Errorf("%s: %q, keep %v", client, got, keep)
		}
	}
	if got, _ := ask(t, WhoAmI{}, ".", "A", someone); !strings.Contains(got, "_udp. 0 IN SRV") {
		t.Errorf("root: %q", got)
	}
}

func TestGarbageIsNobodysQuestion(t *testing.T) {
	for _, a := range []answerer{newTemplates(t, TemplateConfig{Type: "ANY"}), NewHosts(HostsConfig{}), WhoAmI{}} {
		for _, q := range [][]byte{nil, {1}, make([]byte, 12), []byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xff")} {
			if reply, _ := a.Answer(q, wire.Origin{}); reply != nil {
				t.Errorf("%T answers %x", a, q)
			}
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestHostsIsAFile: what would block the question that looks at it, or fill the memory, is
// not read, and told of once.
func TestHostsIsAFile(t *testing.T) {
	dir := t.TempDir()
	fifo, huge := filepath.Join(dir, "fifo"), filepath.Join(dir, "huge")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, huge, "192.0.2.2 a.test\n")
	if err := os.Truncate(huge, maxHostsFile+1); err != nil { // sparse: it takes no room
		t.Fatal(err)
	}
	for file, want := range map[string]string{fifo: "no regular file", dir: "no regular file", huge: "at most"} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			h := NewHosts(HostsConfig{File: file, Inline: []string{"192.0.2.1 inline.test"}, Reload: time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))})
			for range 3 {
				if got, _ := ask(t, h, "inline.test.", "A", someone); !strings.HasSuffix(got, " 192.0.2.1") {
					t.Errorf("%s: %s", file, got)
				}
				time.Sleep(time.Second)
			}
			if n := strings.Count(log.String(), want); n != 1 {
				t.Errorf("%s: told of %d times: %s", file, n, log.String())
			}
		})
	}
}
