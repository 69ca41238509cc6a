package agent_test

import (
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodedns/nodedns/e2e/agent"
)

func client(t *testing.T) *agent.Client {
	t.Helper()
	s := httptest.NewServer(agent.NewServer())
	t.Cleanup(s.Close)
	return agent.NewClient(s.Listener.Addr().String(), (&net.Dialer{}).DialContext)
}

func TestRun(t *testing.T) {
	c := client(t)
	out, err := c.RunCommand(t.Context(), agent.Command{Args: []string{"cat"}, Stdin: "hello"})
	if err != nil || out != "hello" {
		t.Errorf("cat: %q, %v", out, err)
	}
	_, err = c.Shell(t.Context(), "echo no >&2; exit 7")
	if exit, ok := errors.AsType[*agent.ExitError](err); !ok || exit.Code != 7 || !strings.Contains(exit.Output, "no") {
		t.Errorf("a command that fails with 7: %v", err)
	}
	if _, err := c.Run(t.Context(), "/does/not/exist"); err == nil {
		t.Error("a program that does not exist ran")
	}
}

func TestDaemon(t *testing.T) {
	c := client(t)
	dir := t.TempDir()
	script := "echo $$ > " + filepath.Join(dir, "pid") + "; exec sleep 1000"
	d := agent.Daemon{Name: "d", Args: []string{"sh", "-c", script}, Log: filepath.Join(dir, "log")}
	if err := c.StartDaemon(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	wait := "while ! [ -s " + filepath.Join(dir, "pid") + " ]; do sleep 0.01; done"
	if _, err := c.Shell(t.Context(), wait); err != nil {
		t.Fatal(err)
	}
	pid, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	if at, err := c.Signal(t.Context(), n, 0); err != nil || at.Before(before.Round(0)) || at.After(time.Now().Round(0)) {
		t.Errorf("signal 0 to the daemon: sent at %s, %v", at, err)
	}
	if err := c.StopDaemon(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Signal(t.Context(), n, 0); err == nil {
		t.Error("the stopped daemon takes signals")
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
		t.Error("the stopped daemon is still there")
	}
	if err := c.StopDaemon(t.Context(), "d"); err != nil {
		t.Errorf("stopping twice: %v", err)
	}
}
