package forward

import (
	"testing"
	"time"

	"github.com/miekg/dns"
)

// packedDO is packed with the DO bit.
func packedDO(t testing.TB, name string) []byte {
	raw := packed(t, name)
	q, ok := readQuery(raw)
	if !ok || !q.edns() || q.do() {
		t.Fatal("no OPT at the end")
	}
	raw[q.end+7] |= 0x80
	return raw
}

// plain is the number of queries for a name without EDNS.
func (f *fake) plain(name string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.seen {
		if q.is(name) && q.msg.IsEdns0() == nil {
			n++
		}
	}
	return n
}

// withoutOPT answers what has no OPT and leaves the rest to with.
func withoutOPT(with func(*asked)) func(*asked) {
	return func(q *asked) {
		if q.msg.IsEdns0() == nil {
			q.send(q.reply(1))
		} else {
			with(q)
		}
	}
}

func failsWith(rcode int, opt bool) func(*asked) {
	return func(q *asked) {
		m := q.reply(0)
		if opt {
			m.SetEdns0(1232, false)
		}
		m.Rcode = rcode
		q.send(m)
	}
}

// RFC 6891 section 7, 6.1.3: an upstream that does not take EDNS is asked without, at
// once, and from then on.
func TestRFC6891_UpstreamWithoutEDNS(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]func(*asked){
		"FORMERR":  failsWith(dns.RcodeFormatError, false),
		"NOTIMP":   failsWith(dns.RcodeNotImplemented, false),
		"SERVFAIL": failsWith(dns.RcodeServerFailure, false),
		"BADVERS":  failsWith(dns.RcodeBadVers, true),
	} {
		for _, force := range []bool{false, true} {
			up := newFake(t, withoutOPT(with))
			f := start(t, Config{Targets: targets(up), ForceTCP: force})
			f.mustAsk(t, "a.test", 1, time.Second)
			f.mustAsk(t, "b.test", 1, time.Second)
			if a, b := up.count("a.test"), up.count("b.test"); a != 2 || b != 1 {
				t.Errorf("%s: asked %d times, then %d, want 2 and 1", name, a, b)
			}
			// Who needs DNSSEC records does so every time.
			raw, err := f.Exchange(t.Context(), packedDO(t, "do.test"))
			if n := up.count("do.test"); err != nil || (raw[3]&15 != 0 || n != 2) != (name == "SERVFAIL") {
				t.Errorf("%s with DO: asked %d times, rcode %d, error %v", name, n, raw[3]&15, err)
			}
			up.become(func(q *asked) { m := q.reply(1); m.SetEdns0(1232, false); q.send(m) })
			if _, err := f.Exchange(t.Context(), packedDO(t, "do2.test")); err != nil {
				t.Fatal(err)
			}
			f.mustAsk(t, "c.test", 1, time.Second)
			if up.plain("c.test") != 0 {
				t.Errorf("%s: still asked without EDNS after it took it", name)
			}
		}
	}
}

// An upstream that drops queries with OPT, and no others.
func TestRFC6891_UpstreamIgnoresEDNS(t *testing.T) {
	t.Parallel()
	up := newFake(t, withoutOPT(silent))
	f := start(t, Config{Targets: targets(up), ReadTimeout: 50 * time.Millisecond})
	for i, want := range []int{2, 2, 1} {
		name := string(rune('a'+i)) + ".test"
		f.mustAsk(t, name, 1, time.Second)
		if n := up.count(name); n != want {
			t.Errorf("%s: asked %d times, want %d", name, n, want)
		}
	}
}

// The same for who wants DNSSEC records, since nothing else is to be had; but not from an
// upstream that has shown before that it takes EDNS.
func TestRFC6891_UpstreamIgnoresEDNSWithDO(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		up := newFake(t, withoutOPT(silent))
		f := start(t, Config{Targets: targets(up), ReadTimeout: 50 * time.Millisecond, Timeout: 500 * time.Millisecond, ForceTCP: force})
		for i, want := range []int{2, 2, 1, 1} {
			name := string(rune('a'+i)) + ".test"
			if raw, err := f.Exchange(t.Context(), packedDO(t, name)); err != nil || raw[3]&15 != 0 {
				t.Fatalf("%s: %v", name, err)
			}
			if n := up.count(name); n != want {
				t.Errorf("%s: asked %d times, want %d", name, n, want)
			}
		}

		// It is tried again after a while, and what it takes then it is given.
		u := (*f.ups.Load())[0]
		u.edns.plain.Store(0)
		u.edns.deaf.Store(0)
		withEDNS := func(q *asked) { m := q.reply(1); m.SetEdns0(1232, true); q.send(m) }
		up.become(withEDNS)
		if _, err := f.Exchange(t.Context(), packedDO(t, "later.test")); err != nil || up.plain("later.test") != 0 {
			t.Errorf("later: %v, asked without EDNS %d times", err, up.plain("later.test"))
		}
		up.become(withoutOPT(silent))
		if _, err := f.Exchange(t.Context(), packedDO(t, "strip.test")); err == nil || up.plain("strip.test") != 0 {
			t.Errorf("took the DNSSEC records away from who asked for them: %v", err)
		}
	}
}

// A failure of the name, or a packet that was lost, is no reason to ask without.
func TestEDNSIsNotBlamed(t *testing.T) {
	t.Parallel()
	up := newFake(t, func(q *asked) {
		switch {
		case q.is("bad.test"):
			failsWith(dns.RcodeServerFailure, false)(q)
		case !q.is("lost.test") || q.count("lost.test") > 1:
			m := q.reply(1)
			m.SetEdns0(1232, false)
			q.send(m)
		}
	})
	f := start(t, Config{Targets: targets(up), ReadTimeout: 200 * time.Millisecond})
	f.mustAsk(t, "good.test", 1, time.Second)
	f.mustAsk(t, "bad.test", 0, time.Second)
	if n := up.count("bad.test"); n != 1 {
		t.Errorf("bad.test asked %d times", n)
	}
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		f.mustAsk(t, "lost.test", 1, time.Second)
	}()
	eventually(t, "the lost query", func() bool { return up.count("lost.test") == 1 })
	f.mustAsk(t, "meanwhile.test", 1, time.Second)
	<-lost
	f.mustAsk(t, "last.test", 1, time.Second)
	for _, name := range []string{"good.test", "bad.test", "lost.test", "meanwhile.test", "last.test"} {
		if n := up.plain(name); n != 0 {
			t.Errorf("%s asked without EDNS", name)
		}
	}
}
