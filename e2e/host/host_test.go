package host_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodedns/nodedns/e2e/bedtest"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
)

func namespace(t *testing.T) *host.Namespace {
	t.Helper()
	bedtest.Require(t, host.Preflight(host.Needs{Root: true}))
	n, err := host.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// Sockets that are opened in a namespace are reached in it and nowhere else, from any goroutine.
func TestNamespace(t *testing.T) {
	n := namespace(t)
	l, err := n.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := n.Dial(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Errorf("from inside: %v", err)
	} else {
		c.Close()
	}
	if c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener is reached from outside")
	}
	links, err := os.ReadDir("/sys/class/net")
	if err != nil || len(links) == 0 {
		t.Errorf("the test itself has left its namespace: %d links, %v", len(links), err)
	}
}

// A child runs in its namespace, with its own PID namespace if asked, and is gone after Stop.
func TestStart(t *testing.T) {
	n := namespace(t)
	log := filepath.Join(t.TempDir(), "log")
	p, err := host.Start(host.Command{
		Name: "child", Path: "sh", Args: []string{"-c", "echo $$ started; exec sleep 1000"}, Log: log,
		Namespace: n, Alone: true, Nice: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	err = host.Until(t.Context(), "the child to say something", 10*time.Second, func(context.Context) error {
		if lines := strings.Fields(host.Tail(log, 9)); len(lines) < 2 {
			return fmt.Errorf("it said %q", lines)
		}
		return nil
	}, p)
	if err != nil {
		t.Fatal(err)
	}
	if first := strings.Fields(host.Tail(log, 9))[0]; first != "1" {
		t.Errorf("the child is process %s in its PID namespace", first)
	}
	if p.Err() != nil {
		t.Errorf("a running child has ended: %v", p.Err())
	}
	p.Stop(time.Second)
	if p.Err() == nil {
		t.Error("a stopped child runs")
	}
	if left := host.Leftovers(); left != nil {
		t.Error(left)
	}
}

// Waiting ends at once when the process that is waited for has ended, and the error shows its last words.
func TestUntilTellsWhy(t *testing.T) {
	n := namespace(t)
	p, err := host.Start(host.Command{
		Name: "child", Path: "sh", Args: []string{"-c", "echo no such disk; exit 3"}, Log: filepath.Join(t.TempDir(), "log"), Namespace: n,
	})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err = host.Until(t.Context(), "a wonder", time.Minute, func(context.Context) error { return errors.New("not yet") }, p)
	if err == nil || !strings.Contains(err.Error(), "no such disk") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("the error is %v", err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %s to see that the process has ended", took)
	}
}

// A sweep removes folders whose owner is gone, and no others.
func TestSweep(t *testing.T) {
	con := console.New(t.Output())
	mine, err := host.NewWorkspace(con, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	dead := filepath.Join(os.TempDir(), "nodedns-bed-dead-1")
	other := filepath.Join(os.TempDir(), "nodedns-other-1")
	for _, dir := range []string{dead, other} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host.Sweep(con)
	for dir, want := range map[string]bool{mine.Path(): true, dead: false, other: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v", dir, err)
		}
	}
	mine.Close()
	if _, err := os.Stat(mine.Path()); !os.IsNotExist(err) {
		t.Errorf("a closed run folder is still there: %v", err)
	}
}

// Each problem of the machine is named, with what to do.
func TestPreflight(t *testing.T) {
	err := host.Preflight(host.Needs{Memory: 1 << 30, Disk: 1 << 40, Dir: t.TempDir()})
	for _, want := range []string{"MiB of memory available", "MiB free in"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}
