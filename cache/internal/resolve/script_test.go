package resolve

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/store"
	"github.com/nodedns/nodedns/cache/internal/wire"
)

var update = flag.Bool("update", false, "write what the scenarios say instead of comparing it")

// TestScenarios runs testdata/*.txt. A file is a list of steps: a command, the lines it
// takes, "----", and what it says. Time is that of a synctest bubble, so that "advance"
// takes none.
//
//	zone . [option=value…]              begins with an empty cache; see script.zone
//	upstream NAME TYPE [delay=2s …]     sets the reply: "rcode X", "tc", "ad", "answer RR",
//	                                    "authority RR", "additional RR", or "error busy";
//	                                    cd or do restrict it to such queries
//	query NAME TYPE [tcp] [ad] [cd] [do] [edns=N]
//	burst N NAME TYPE                   asks N times at once
//	advance 31s
//	stats                               what the cache holds
func TestScenarios(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	if len(files) == 0 {
		t.Fatal("no scenarios")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			runScript(t, file)
		})
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t, up: newScriptUpstream()}
		defer s.close()
		for step := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
			if strings.HasPrefix(step, "#") && !strings.Contains(step, "\n----") {
				out.WriteString(step + "\n\n") // only words
				continue
			}
			head, _, _ := strings.Cut(step, "\n----")
			var lines []string
			for line := range strings.SplitSeq(head, "\n") {
				if !strings.HasPrefix(line, "#") {
					lines = append(lines, line)
				}
			}
			out.WriteString(head + "\n----\n" + s.run(strings.Fields(lines[0]), lines[1:]) + "\n")
		}
	})
	got := strings.TrimRight(out.String(), "\n") + "\n"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), got); diff != "" {
		t.Errorf("scenario says something else (-want +got):\n%s", diff)
	}
}

// script is a running scenario.
type script struct {
	t      *testing.T
	up     *scriptUpstream
	store  *store.Store
	router *Router
}

func (s *script) close() {
	if s.router != nil {
		s.router.Close()
	}
}

// run runs one step and returns what it says, lines with their ends.
func (s *script) run(words, lines []string) string {
	s.t.Helper()
	switch words[0] {
	case "zone":
		s.zone(words[1], words[2:])
	case "upstream":
		s.up.set(s.t, words[1:], lines)
	case "query":
		reply := s.ask(words[1:])
		synctest.Wait()
		return describe(s.t, reply) + s.up.asked()
	case "burst":
		return s.burst(words[1:])
	case "advance":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			s.t.Fatal(err)
		}
		time.Sleep(d)
		synctest.Wait()
		return s.up.asked()
	case "stats":
		return fmt.Sprintf("success %d, denial %d\n", s.store.Len(store.Success), s.store.Len(store.Denial))
	default:
		s.t.Fatalf("unknown command %q", words[0])
	}
	return ""
}

// zone starts anew with the given name and options of ZoneConfig.
func (s *script) zone(name string, options []string) {
	s.t.Helper()
	s.close()
	cfg := ZoneConfig{Names: []string{name}, Routes: []Route{{From: ".", Upstream: s.up}}}
	capacity := store.Config{}
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		c := &cfg.Cache
		switch key {
		case "success":
			c.Success.Max = s.duration(value)
		case "denial":
			c.Denial.Max = s.duration(value)
		case "minsuccess":
			c.Success.Min = s.duration(value)
		case "mindenial":
			c.Denial.Min = s.duration(value)
		case "servfail":
			c.ServFail = s.duration(value)
		case "stale":
			c.Stale.For = s.duration(value)
		case "verify":
			c.Stale.Verify = true
		case "recheck":
			c.Stale.Recheck = s.duration(value)
		case "prefer_positive":
			c.Stale.PreferPositive = true
		case "prefetch":
			c.Prefetch.Amount, _ = strconv.Atoi(value)
		case "percent":
			c.Prefetch.Percent, _ = strconv.Atoi(value)
		case "keepttl":
			c.KeepTTL = true
		case "disable_success":
			c.DisableSuccess = strings.Split(value, ",")
		case "disable_denial":
			c.DisableDenial = strings.Split(value, ",")
		case "cachezones":
			c.Zones = strings.Split(value, ",")
		case "cut":
			cfg.SearchCut = strings.Split(value, ",")
		case "inflight":
			cfg.MaxInflight, _ = strconv.Atoi(value)
		case "bufsize":
			cfg.BufSize, _ = strconv.Atoi(value)
		case "loadbalance":
			cfg.LoadBalance = true
		case "rewrite":
			from, to, _ := strings.Cut(value, ">")
			cfg.Rewrites = append(cfg.Rewrites, Rewrite{Match: RewriteSuffix, From: from, To: to, AnswerAuto: true})
		case "except":
			cfg.Routes[0].Except = strings.Split(value, ",")
		default:
			s.t.Fatalf("unknown option %q", key)
		}
	}
	capacity.Stale = cfg.Cache.Stale.For
	s.store = store.New(capacity)
	cfg.Store = s.store
	z, err := NewZone(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	turn := uint32(0)
	z.turn = func() uint32 { turn++; return turn }
	s.router = NewRouter(RouterConfig{Server: "dns://test", Zones: []*Zone{z}, Nonce: "nonce.test", Metrics: NewMetrics(nil)})
}

func (s *script) duration(v string) time.Duration {
	s.t.Helper()
	d, err := time.ParseDuration(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// ask asks as the words say, the way a server does.
func (s *script) ask(words []string) []byte {
	s.t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(words[0], dns.StringToType[words[1]])
	m.Id = 1
	from := wire.Origin{Client: netip.MustParseAddrPort("10.0.0.1:4000")}
	for _, w := range words[2:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "tcp":
			from.Transport = wire.TCP
		case "ad":
			m.AuthenticatedData = true
		case "cd":
			m.CheckingDisabled = true
		case "do":
			m.SetEdns0(1232, true)
		case "edns":
			n, _ := strconv.Atoi(value)
			m.SetEdns0(uint16(n), false)
		default:
			s.t.Fatalf("unknown word %q", w)
		}
	}
	b, err := m.Pack()
	if err != nil {
		s.t.Fatal(err)
	}
	return answer(s.t.Context(), s.router, b, from)
}

// answer answers a query as package listen does.
func answer(ctx context.Context, r *Router, query []byte, from wire.Origin) []byte {
	buf := make([]byte, 65535)
	if reply, ok := r.Hit(buf, query, from); ok {
		return slices.Clone(reply)
	}
	return slices.Clone(r.Resolve(ctx, buf, query, from))
}

func (s *script) burst(words []string) string {
	n, err := strconv.Atoi(words[0])
	if err != nil {
		s.t.Fatal(err)
	}
	var wg sync.WaitGroup
	replies := make([]string, n)
	for i := range n {
		wg.Go(func() { replies[i] = describe(s.t, s.ask(words[1:])) })
	}
	wg.Wait()
	synctest.Wait()
	counts := make(map[string]int)
	for _, r := range replies {
		counts[r]++
	}
	var out strings.Builder
	for _, r := range slices.Sorted(mapKeys(counts)) {
		fmt.Fprintf(&out, "%d times: %s", counts[r], r)
	}
	return out.String() + s.up.asked()
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// describe prints a reply: code, flags, records by section.
func describe(t *testing.T, reply []byte) string {
	t.Helper()
	if len(reply) == 0 {
		return "silence\n"
	}
	var m dns.Msg
	if err := m.Unpack(reply); err != nil {
		t.Errorf("reply %x: %v", reply, err)
		return "unreadable\n"
	}
	var out strings.Builder
	out.WriteString(wire.Rcode(m.Rcode).String())
	for _, f := range []struct {
		on   bool
		name string
	}{{m.Authoritative, "aa"}, {m.Truncated, "tc"}, {m.RecursionAvailable, "ra"}, {m.AuthenticatedData, "ad"}, {m.CheckingDisabled, "cd"}} {
		if f.on {
			out.WriteString(" " + f.name)
		}
	}
	if opt := m.IsEdns0(); opt != nil {
		fmt.Fprintf(&out, " edns=%d", opt.UDPSize())
		if opt.Do() {
			out.WriteString(" do")
		}
		for _, o := range opt.Option {
			out.WriteString(" " + dns.ExtendedErrorCodeToString[o.(*dns.EDNS0_EDE).InfoCode])
		}
	}
	out.WriteString("\n")
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				fmt.Fprintf(&out, "%s %s\n", []string{"answer", "authority", "additional"}[i], strings.ReplaceAll(rr.String(), "\t", " "))
			}
		}
	}
	return out.String()
}
