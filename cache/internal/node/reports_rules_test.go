package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
)

func TestN03_LockHeldBySomebodyElse(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		hold := func(t *testing.T, d time.Duration) {
			t.Helper()
			f, err := os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(d, func() { _ = f.Close() })
		}
		cfg := Config{Guard: LevelSocket, LockWait: time.Second, Patience: 20 * time.Second}
		t.Run("at start", func(t *testing.T) {
			hold(t, 2500*time.Millisecond)
			n := started(t, p.node(t, cfg))
			if list := n.problems.list(); len(list) > 0 || n.Level() != LevelSocket {
				t.Errorf("after the lock was free: level %s, problems %q", n.Level(), list)
			}
			if got := testutil.ToFloat64(n.m.lockWaits); p.flavour == Legacy && got == 0 {
				t.Error("no waiting was counted")
			}
		})
		t.Run("longer than the patience at start, then while running", func(t *testing.T) {
			hold(t, 4*time.Second)
			short := cfg
			short.Patience = time.Second
			n := started(t, p.node(t, short))
			running(t, n, answering{})
			within(t, 15*time.Second, "complete", func() bool { return n.Level() == LevelSocket && len(n.problems.list()) == 0 && n.InService() })
		})
		t.Run("at the end", func(t *testing.T) {
			n := started(t, p.node(t, cfg))
			hold(t, 2500*time.Millisecond)
			if err := n.TearDown(t.Context()); err != nil {
				t.Error(err)
			}
			if strings.Contains(dump(t, p.host(), p.flavour), "raw -A") {
				t.Error("raw rules are left")
			}
		})
		if p.flavour != Legacy {
			return // only the legacy flavour has a lock file
		}
		for name, spoil := range map[string]string{
			"directory in its place": "rm -f /run/xtables.lock && mkdir /run/xtables.lock",
			"read-only":              "rm -rf /run/xtables.lock && mount -o remount,ro /run",
		} {
			t.Run(name, func(t *testing.T) {
				sh(t, spoil)
				t.Cleanup(func() { sh(t, "mount -o remount,rw /run; rm -rf /run/xtables.lock") })
				n := p.node(t, Config{Guard: LevelSocket, LockWait: time.Second, Patience: time.Second})
				started(t, n)
				running(t, n, answering{})
				if list := strings.Join(n.problems.list(), "\n"); !strings.Contains(list, "xtables.lock") || !strings.Contains(list, "FileOrCreate") {
					t.Errorf("the problems do not name the lock file and what to do:\n%s", list)
				}
				sh(t, "mount -o remount,rw /run; rm -rf /run/xtables.lock")
				within(t, 15*time.Second, "complete once the file can be had", func() bool { return n.Level() == LevelSocket && len(n.problems.list()) == 0 })
			})
		}
	})
}

func TestN04_RulesPileUp(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		wrap(t, p, `for a in "$@"; do [ "$a" = -C ] && exit 1; done`)
		count := func() int { return strings.Count(dump(t, p.host(), p.flavour), commentPrefix) }
		n := started(t, p.node(t, Config{Guard: LevelSocket}))
		want := count()
		for range 5 {
			if err := n.applyRules(t.Context(), n.sides[0]); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 { // each is a process that was killed without a word
			started(t, p.node(t, Config{Guard: LevelSocket}))
		}
		if got := count(); got != want || want == 0 {
			t.Errorf("%d rules after ten rounds, %d at first", got, want)
		}
	})
}

func TestN04_RulesThatAreNotListed(t *testing.T) { synctest.Test(t, testNotListed) }

func testNotListed(t *testing.T) {
	f := newFake()
	n := started(t, makeNode(t, Config{Guard: LevelSocket}, f, kindOurs))
	f.mu.Lock()
	f.rules[v4].hide = true
	f.mu.Unlock()
	applyEachSecond(t, n, 2*3600)
	if list := strings.Join(n.problems.list(), "\n"); !strings.Contains(list, errUnlisted.Error()) {
		t.Errorf("no problem says so:\n%s", list)
	}
	f.mu.Lock()
	for k, lines := range f.rules[v4].chains {
		if most := 2 * len(n.wantedIn(k)); len(lines) > most {
			t.Errorf("%v: %d rules, want no more than one copy each besides the first", k, len(lines))
		}
	}
	f.rules[v4].hide = false
	f.mu.Unlock()
	time.Sleep(time.Hour)
	if err := n.applyRules(t.Context(), n.sides[0]); err != nil || len(n.problems.list()) > 0 {
		t.Errorf("listed again: %v, %q", err, n.problems.list())
	}
	for k, lines := range f.rules[v4].chains {
		if len(lines) != len(n.wantedIn(k)) {
			t.Errorf("%v: %d rules, want %d", k, len(lines), len(n.wantedIn(k)))
		}
	}
}

// TestN04_ClearedWhileLooking: a firewall that is reloaded between the adding and the looking takes the rules away for that
// moment, not for good.
func TestN04_ClearedWhileLooking(t *testing.T) { synctest.Test(t, testClearedWhileLooking) }

func testClearedWhileLooking(t *testing.T) {
	f := newFake()
	n := started(t, makeNode(t, Config{Guard: LevelSocket}, f, kindOurs))
	clearing := func(yes bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rules[v4].clear = yes
	}
	clearing(true)
	if err := n.applyRules(t.Context(), n.sides[0]); !errors.Is(err, errUnlisted) {
		t.Fatalf("cleared at once, the rules are there? %v", err)
	}
	clearing(false)
	applyEachSecond(t, n, 3)
	if list := n.problems.list(); len(list) > 0 {
		t.Errorf("three seconds later: %q", list)
	}
	// The same with the firewall waiting for our commit to give it the lock.
	f.mu.Lock()
	clear(f.rules[v4].chains)
	f.rules[v4].clearNext = true
	f.mu.Unlock()
	applyEachSecond(t, n, 4)
	if list := n.problems.list(); len(list) > 0 {
		t.Errorf("four seconds after a commit that was undone: %q", list)
	}
	for _, k := range eachChain() {
		if got, want := len(f.rules[v4].chains[k]), len(n.wantedIn(k)); got != want {
			t.Errorf("%v: %d rules, want %d", k, got, want)
		}
	}
}

// applyEachSecond applies the rules once a second.
func applyEachSecond(t *testing.T, n *Node, seconds int) {
	t.Helper()
	for range seconds {
		time.Sleep(time.Second)
		_ = n.applyRules(t.Context(), n.sides[0])
	}
}

// wantedIn are the rules that belong into a chain.
func (n *Node) wantedIn(k chainKey) []rule {
	var out []rule
	for _, r := range n.want(n.sides[0], false).rules() {
		if r.table == k.table && r.chain == k.chain {
			out = append(out, r)
		}
	}
	return out
}

// wrap puts wrappers of the iptables commands first into PATH. script runs before the real command.
func wrap(t *testing.T, p place, script string) {
	t.Helper()
	dir := t.TempDir()
	for _, suffix := range []string{"", "-restore"} {
		name := "iptables-" + string(p.flavour) + suffix
		real, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("#!/bin/sh\n%s\nexec %s \"$@\"\n", script, real)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
