package clients_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A conversation is what one run of a client asks, and what it must and must not say then: regular expressions, each
// for a part of a line. In want, "## text", with as many # as times, means that text is there so often.
type conversation struct {
	ask         string
	want, never []string
}

// converse lets a client have conversations. always are arguments before those of each.
func converse(t *testing.T, client, always string, never []string, talks []conversation) {
	t.Helper()
	for _, c := range talks {
		t.Run(c.ask, func(t *testing.T) {
			text := said(t, nil, client, strings.Fields(always+" "+c.ask)...)
			c.check(t, text, never)
			if t.Failed() {
				t.Logf("%s %s %s:\n%s", client, always, c.ask, text)
			}
		})
	}
}

func (c conversation) check(t *testing.T, text string, never []string) {
	t.Helper()
	for _, w := range c.want {
		times := -1
		if number, rest, ok := strings.Cut(w, " "); ok && strings.HasPrefix(number, "#") {
			times, w = len(number), rest // one # for each time
		}
		found := len(regexp.MustCompile("(?m)"+w).FindAllString(text, -1))
		if found == 0 && times < 0 || times >= 0 && found != times {
			t.Errorf("%q is there %d times", w, found)
		}
	}
	for _, n := range slices.Concat(never, c.never) {
		if hit := regexp.MustCompile("(?m)" + n).FindString(text); hit != "" {
			t.Errorf("says %q", hit)
		}
	}
}
