package resolve

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// scriptUpstream answers as it is told and remembers what it was asked. The most
// special of the replies set for a question is used; the one for name "*" is the last
// resort.
type scriptUpstream struct {
	mu      sync.Mutex
	replies map[string]scriptReply
	seen    []string
}

type scriptReply struct {
	msg   *dns.Msg
	err   error
	hang  bool
	delay time.Duration
}

func newScriptUpstream() *scriptUpstream {
	return &scriptUpstream{replies: make(map[string]scriptReply)}
}

// set sets a reply from the words and lines of a scenario.
func (u *scriptUpstream) set(t *testing.T, words, lines []string) {
	t.Helper()
	m := new(dns.Msg)
	m.RecursionAvailable, m.Authoritative = true, true
	r := scriptReply{msg: m}
	key := strings.Join(words[:2], " ")
	for _, w := range words[2:] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "delay":
			d, err := time.ParseDuration(value)
			if err != nil {
				t.Fatal(err)
			}
			r.delay = d
		case "cd", "do":
			key += " " + name
		default:
			t.Fatalf("unknown word %q", w)
		}
	}
	for _, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "rcode":
			m.Rcode = dns.StringToRcode[rest]
		case "tc":
			m.Truncated = true
		case "ad":
			m.AuthenticatedData = true
		case "opt":
			m.SetEdns0(1232, false)
		case "hang":
			r.hang = true
		case "error":
			r.err = map[string]error{"busy": wire.ErrBusy, "noupstream": wire.ErrNoUpstream, "loop": wire.ErrLoop}[rest]
			if r.err == nil {
				r.err = fmt.Errorf("%s", rest)
			}
		case "answer", "authority", "additional":
			rr, err := dns.NewRR(rest)
			if err != nil {
				t.Fatal(err)
			}
			section := map[string]*[]dns.RR{"answer": &m.Answer, "authority": &m.Ns, "additional": &m.Extra}[word]
			*section = append(*section, rr)
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.replies[key] = r
}

// Exchange implements Upstream.
func (u *scriptUpstream) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	var q dns.Msg
	if err := q.Unpack(query); err != nil {
		return nil, err
	}
	r := u.find(&q)
	if r.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	select {
	case <-time.After(r.delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if r.err != nil {
		return nil, r.err
	}
	m := r.msg.Copy()
	m.Response, m.RecursionDesired, m.Question, m.Compress = true, true, q.Question, true
	return m.Pack()
}

func (u *scriptUpstream) find(q *dns.Msg) scriptReply {
	name, rtype := q.Question[0].Name, dns.Type(q.Question[0].Qtype).String()
	line, suffix := name+" "+rtype, ""
	if q.CheckingDisabled {
		suffix += " cd"
	}
	if opt := q.IsEdns0(); opt == nil {
		line += " noedns"
	} else if opt.Do() {
		suffix += " do"
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seen = append(u.seen, line+suffix)
	for _, name := range []string{name, "*"} {
		for _, special := range []string{suffix, " cd", " do", ""} {
			if r, ok := u.replies[name+" "+rtype+special]; ok && strings.Contains(suffix, special) {
				return r
			}
		}
	}
	return scriptReply{msg: &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}}}
}

// asked says what was asked since the last time.
func (u *scriptUpstream) asked() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out strings.Builder
	slices.Sort(u.seen)
	for _, line := range u.seen {
		out.WriteString("asked " + line + "\n")
	}
	u.seen = nil
	return out.String()
}
