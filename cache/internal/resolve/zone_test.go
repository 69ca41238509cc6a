package resolve

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestValidateNamesEveryFault(t *testing.T) {
	_, err := NewZone(ZoneConfig{
		Names:     []string{"a..b"},
		BufSize:   511,
		Timeout:   -1,
		SearchCut: []string{strings.Repeat("a", 64)},
		Routes:    []Route{{From: ""}},
		Rewrites:  []Rewrite{{Match: RewriteRegex, From: "("}, {Match: RewriteSuffix}, {Match: 99}},
		Cache: CacheConfig{
			Success: TTLBounds{Max: -1}, ServFail: time.Hour, Prefetch: PrefetchConfig{Percent: 95},
			Stale: StaleConfig{For: -1}, DisableDenial: []string{""},
		},
	})
	if err == nil {
		t.Fatal("passes")
	}
	for _, want := range []string{"zone:", "bufsize 511", "timeout", "search_cut", "forward from", "no upstream", "rule 1", "rule 2", "rule 3",
		"success", "servfail 1h", "prefetch", "serve_stale", "disable denial"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	if (ZoneConfig{}).Validate() == nil {
		t.Error("no zone name passes")
	}
}

// fakeLocal answers names below "local." for all, and below "private." for each client.
type fakeLocal struct{ n int }

func (f *fakeLocal) Answer(query []byte, from wire.Origin) ([]byte, bool) {
	var m dns.Msg
	if m.Unpack(query) != nil {
		return nil, false
	}
	name := m.Question[0].Name
	private := dns.IsSubDomain("private.", name)
	if !private && !dns.IsSubDomain("local.", name) {
		return nil, false
	}
	f.n++
	r := new(dns.Msg)
	r.SetReply(&m)
	r.Authoritative = true
	text := "for all"
	if private {
		text = from.Client.String()
	}
	r.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: 1, Ttl: 60}, Txt: []string{text}}}
	b, _ := r.Pack()
	return b, !private
}

func TestLocalAnswers(t *testing.T) {
	local := &fakeLocal{}
	r := newTestRouter(t, func(c *ZoneConfig) { c.Local = []Local{local} }, answers(t, "up.test. 60 IN TXT \"upstream\""))
	get := func(name string) string {
		m := ask(t, r, packedQuery(name, dns.TypeTXT, false, false), client(wire.UDP))
		if len(m.Answer) != 1 {
			return ""
		}
		if m.Authoritative != (name != "up.test.") {
			t.Errorf("%s: AA %v", name, m.Authoritative)
		}
		return m.Answer[0].(*dns.TXT).Txt[0]
	}
	for _, c := range []struct {
		name, want string
		calls      int
	}{{"a.local.", "for all", 1}, {"b.private.", "10.0.0.1:4000", 2}, {"up.test.", "upstream", 0}} {
		local.n = 0
		for range 2 {
			if got := get(c.name); got != c.want {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
		}
		if local.n != c.calls {
			t.Errorf("%s: asked %d times, want %d", c.name, local.n, c.calls)
		}
	}
}

// TestLastAnswersWithoutRoute: whoami and the like, where nothing is forwarded.
func TestLastAnswersWithoutRoute(t *testing.T) {
	r := newTestRouter(t, func(c *ZoneConfig) {
		c.Last = &fakeLocal{}
		c.Routes[0].From = "fwd.test"
	}, answers(t, "a.fwd.test. 60 IN TXT \"upstream\""))
	for name, want := range map[string]int{"a.private.": dns.RcodeSuccess, "a.fwd.test.": dns.RcodeSuccess, "other.test.": dns.RcodeServerFailure} {
		if m := ask(t, r, packedQuery(name, dns.TypeTXT, false, false), client(wire.UDP)); m.Rcode != want {
			t.Errorf("%s: %v", name, m)
		}
	}
}

func TestWithoutCacheEverythingGoesUpstream(t *testing.T) {
	n := 0
	r := newTestRouter(t, func(c *ZoneConfig) { c.Store = nil }, upstreamFunc(func(q *dns.Msg) *dns.Msg {
		n++
		return answers(t, "a.test. 60 IN A 192.0.2.1")(q)
	}))
	for range 3 {
		if m := ask(t, r, packedQuery("a.test.", dns.TypeA, false, false), client(wire.UDP)); len(m.Answer) != 1 {
			t.Errorf("reply %v", m)
		}
	}
	if n != 3 {
		t.Errorf("asked %d times", n)
	}
}

func TestQueryLog(t *testing.T) {
	var records []LogRecord
	r := newTestRouter(t, func(c *ZoneConfig) {
		c.QueryLog = func(rec LogRecord) {
			rec.Reply, rec.Query = bytes.Clone(rec.Reply), bytes.Clone(rec.Query)
			records = append(records, rec)
		}
	}, answers(t, "a.test. 60 IN A 192.0.2.1"))
	q := packedQuery("A.test.", dns.TypeA, true, true)
	for range 2 { // hits are logged as well
		ask(t, r, q, client(wire.TCP))
	}
	if len(records) != 2 {
		t.Fatalf("%d records", len(records))
	}
	for _, rec := range records {
		if rec.Name != "a.test." || rec.Type != "A" || rec.Class != "IN" || !rec.DO || rec.Rcode != wire.NoError ||
			rec.Origin != client(wire.TCP) || !bytes.Equal(rec.Query, q) || len(rec.Reply) == 0 {
			t.Errorf("record %+v", rec)
		}
	}
}

func TestErrorLog(t *testing.T) {
	var out bytes.Buffer
	up := newScriptUpstream()
	up.set(t, []string{"*", "A"}, []string{"error connection refused"})
	r := newTestRouter(t, func(c *ZoneConfig) { c.ErrorLog = slog.New(slog.NewTextHandler(&out, nil)) }, up)
	ask(t, r, packedQuery("bad\\000.test.", dns.TypeA, false, false), client(wire.UDP))
	for i := range 25 {
		ask(t, r, packedQuery(benchName(i), dns.TypeA, false, false), client(wire.UDP))
	}
	if n := strings.Count(out.String(), "query failed"); n != 26 {
		t.Errorf("%d records", n)
	}
	if s := out.String(); !strings.Contains(s, `bad\000.test.`) || !strings.Contains(s, "connection refused") || !strings.Contains(s, "type=A") {
		t.Errorf("record is %s", s)
	}
}

func TestRewriteRules(t *testing.T) {
	for _, c := range []struct {
		rule           Rewrite
		name, asked    string
		answer, expect string // one record each way
	}{
		{Rewrite{Match: RewriteExact, From: "Old.test", To: "new.test"}, "old.test.", "new.test.",
			"new.test. 60 IN CNAME new.test.", "old.test. 60 IN CNAME old.test."},
		{Rewrite{Match: RewritePrefix, From: "www-", To: "web-", AnswerAuto: true}, "www-1.test.", "web-1.test.",
			"web-1.test. 60 IN CNAME x.test.", "www-1.test. 60 IN CNAME x.test."},
		{Rewrite{Match: RewriteSuffix, From: ".schmoogle.com", To: ".google.com"}, "a.schmoogle.com.", "a.google.com.",
			"a.google.com. 60 IN CNAME b.google.com.", "a.google.com. 60 IN CNAME b.google.com."},
		{Rewrite{Match: RewriteSubstring, From: "us-west", To: "eu", AnswerAuto: true}, "a.us-west.test.", "a.eu.test.",
			"a.eu.test. 60 IN CNAME b.eu.test.", "a.us-west.test. 60 IN CNAME b.eu.test."},
		{Rewrite{Match: RewriteRegex, From: `(.*)-(us-west-1)\.coredns\.rocks`, To: "{1}.service.{2}.consul",
			AnswerName:  []RewritePattern{{`(.*)\.service\.(us-west-1)\.consul`, "{1}-{2}.coredns.rocks"}},
			AnswerValue: []RewritePattern{{`(.*)\.node\.consul`, "{1}.node.rocks"}}},
			"ftp-us-west-1.coredns.rocks.", "ftp.service.us-west-1.consul.",
			"ftp.service.us-west-1.consul. 60 IN CNAME n1.node.consul.", "ftp-us-west-1.coredns.rocks. 60 IN CNAME n1.node.rocks."},
		{Rewrite{Match: RewriteExact, From: "other.test", To: "new.test"}, "old.test.", "old.test.",
			"old.test. 60 IN CNAME x.test.", "old.test. 60 IN CNAME x.test."},
		{Rewrite{Match: RewriteSubstring, From: "a", To: "a..", AnswerAuto: true}, "a.test.", "a.test.", // no name: left alone
			"a.test. 60 IN CNAME x.test.", "a.test. 60 IN CNAME x.test."},
	} {
		var asked string
		r := newTestRouter(t, func(cfg *ZoneConfig) { cfg.Rewrites = []Rewrite{c.rule} }, upstreamFunc(func(q *dns.Msg) *dns.Msg {
			asked = q.Question[0].Name
			return answers(t, c.answer)(q)
		}))
		for range 2 {
			m := ask(t, r, packedQuery(c.name, dns.TypeCNAME, false, false), client(wire.UDP))
			if asked != c.asked || m.Question[0].Name != c.name || len(m.Answer) != 1 || strings.ReplaceAll(m.Answer[0].String(), "\t", " ") != c.expect {
				t.Errorf("%+v: asked %s, reply %v", c.rule, asked, m)
			}
		}
	}
}

func TestRewriteContinue(t *testing.T) {
	var asked string
	rules := []Rewrite{
		{Match: RewriteSuffix, From: ".a.test", To: ".b.test", AnswerAuto: true, Continue: true},
		{Match: RewriteSuffix, From: ".b.test", To: ".c.test", AnswerAuto: true},
		{Match: RewriteSuffix, From: ".c.test", To: ".d.test", AnswerAuto: true},
	}
	r := newTestRouter(t, func(c *ZoneConfig) { c.Rewrites = rules }, upstreamFunc(func(q *dns.Msg) *dns.Msg {
		asked = q.Question[0].Name
		return answers(t, asked+" 60 IN A 192.0.2.1")(q)
	}))
	m := ask(t, r, packedQuery("x.a.test.", dns.TypeA, false, false), client(wire.UDP))
	if asked != "x.c.test." || m.Answer[0].Header().Name != "x.a.test." {
		t.Errorf("asked %s, reply %v", asked, m)
	}
}
