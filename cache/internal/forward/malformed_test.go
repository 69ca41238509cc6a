package forward

import (
	"errors"
	"testing"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// malformedReplies are replies with the right ID and question that nobody can read.
func malformedReplies() map[string]func(q *asked) {
	bend := func(change func(raw []byte, record int) []byte) func(*asked) {
		return func(q *asked) {
			raw, _ := q.reply(1).Pack()
			own, _ := readQuery(q.raw)
			q.sendRaw(change(raw, own.end))
		}
	}
	return map[string]func(*asked){
		"A of five octets":       bend(func(raw []byte, at int) []byte { raw[at+11] = 5; return append(raw, 9) }),
		"owner points at itself": bend(func(raw []byte, at int) []byte { raw[at], raw[at+1] = 0xc0|byte(at>>8), byte(at); return raw }),
		"a record too few":       bend(func(raw []byte, _ int) []byte { raw[7]++; return raw }),
	}
}

// P29: a reply that cannot be read is like one that did not fit: TCP may bring a better
// one, and so may the next upstream.
func TestP29_Malformed(t *testing.T) {
	t.Parallel()
	for name, bad := range malformedReplies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overUDP := newFake(t, func(q *asked) {
				if q.tcp == nil {
					bad(q)
				} else {
					q.send(q.reply(2))
				}
			})
			f := start(t, Config{Targets: targets(overUDP)})
			f.mustAsk(t, "a.test", 2, time.Second)

			always, noMore, good := newFake(t, bad), newFake(t, bad, noTCP), newFake(t, answer)
			for _, force := range []bool{false, true} {
				f = start(t, Config{Targets: targets(always, good), Policy: Sequential, ForceTCP: force})
				f.mustAsk(t, "a.test", 1, time.Second)
			}
			f = start(t, Config{Targets: targets(noMore, good), Policy: Sequential})
			f.mustAsk(t, "a.test", 1, time.Second)

			f = start(t, Config{Targets: targets(always)})
			before := always.count("b.test")
			if m, err := f.ask(t, "b.test"); !errors.Is(err, wire.ErrMalformed) {
				t.Errorf("reply %v, error %v", m, err)
			}
			if n := always.count("b.test") - before; n != 2 {
				t.Errorf("asked %d times, want once over UDP and once over TCP", n)
			}
		})
	}
}

// C11: what one upstream cannot say over UDP, and will not over TCP, the next one may.
func TestC11_TruncatedWithoutTCP(t *testing.T) {
	t.Parallel()
	cut := func(q *asked) { m := q.reply(1); m.Truncated = true; q.send(m) }
	bad, good := newFake(t, cut, noTCP), newFake(t, answer)
	f := start(t, Config{Targets: targets(bad, good), Policy: Sequential, MaxFails: 1})
	if m := f.mustAsk(t, "a.test", 1, time.Second); m.Truncated {
		t.Error("TC, though the second upstream has all")
	}
	dead := newFake(t, answer)
	dead.stop()
	f = start(t, Config{Targets: targets(dead, bad), Policy: Sequential})
	raw, err := f.Exchange(t.Context(), packed(t, "b.test"))
	if err != nil || !isTruncated(raw) || bad.count("b.test") != 1 {
		t.Errorf("reply %x, error %v, asked %d times", raw, err, bad.count("b.test"))
	}
}

// P29: a header with TC and nothing else, not even the question.
func TestP29_HeaderOnly(t *testing.T) {
	t.Parallel()
	up := newFake(t, func(q *asked) {
		if q.tcp == nil {
			q.sendRaw([]byte{q.raw[0], q.raw[1], 0x83, 0x80, 0, 0, 0, 0, 0, 0, 0, 0})
		} else {
			q.send(q.reply(3))
		}
	})
	f := start(t, Config{Targets: targets(up)})
	f.mustAsk(t, "a.test", 3, time.Second)
}
