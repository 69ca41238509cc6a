package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

// TestMain lets the test binary be the program itself, so that tests can start, signal and kill real processes.
func TestMain(m *testing.M) {
	if os.Getenv("NODEDNS_TEST_RUN_MAIN") == "1" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// upstreamServer answers every A question with one address and counts what it is asked.
type upstreamServer struct {
	addr string

	mu    sync.Mutex
	ip    string
	asked map[string]int // by name in lower case and transport: "a.test. tcp"
}

func newUpstream(t *testing.T, ip string) *upstreamServer {
	t.Helper()
	u := &upstreamServer{ip: ip, asked: make(map[string]int)}
	l, pc := listenBoth(t)
	u.addr = l.Addr().String()
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: u}, {Listener: l, Handler: u}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := s.ActivateAndServe(); err != nil {
				t.Error(err)
			}
		}()
		<-started
		t.Cleanup(func() { _ = s.Shutdown(); <-done })
	}
	return u
}

// ServeDNS implements dns.Handler.
func (u *upstreamServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	name := q.Question[0].Name
	u.mu.Lock()
	u.asked[strings.ToLower(name)+" "+w.LocalAddr().Network()]++
	ip := u.ip
	u.mu.Unlock()
	if q.Question[0].Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: net.ParseIP(ip)}}
	}
	_ = w.WriteMsg(m)
}

func (u *upstreamServer) count(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[name+" udp"] + u.asked[name+" tcp"]
}

// listenBoth listens on one port of loopback over TCP and UDP.
func listenBoth(t *testing.T) (net.Listener, net.PacketConn) {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		pc, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return l, pc
		}
		l.Close()
	}
}

// freePort returns a port of loopback that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, pc := listenBoth(t)
	defer l.Close()
	defer pc.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// cacheProcess is the program under test.
type cacheProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	dir  string
	port string
	done chan struct{}
	err  error // of Wait, after done

	mu  sync.Mutex
	log bytes.Buffer
}

// Write collects what the process says.
func (c *cacheProcess) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.Write(p)
}

func (c *cacheProcess) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.String()
}

// launch starts the program as an ordinary forwarder in dir. PORT in args is replaced.
func launch(t *testing.T, dir, port string, env []string, args ...string) *cacheProcess {
	t.Helper()
	return launchProgram(t, os.Args[0], dir, port, env, args...)
}

// launchProgram is launch with another build of the program.
func launchProgram(t *testing.T, program, dir, port string, env []string, args ...string) *cacheProcess {
	t.Helper()
	c := &cacheProcess{t: t, dir: dir, port: port, done: make(chan struct{})}
	args = append([]string{"-setupinterface=false", "-setupiptables=false", "-localip", "127.0.0.1", "-metrics-listen-address", ""}, args...)
	c.cmd = exec.Command(program, args...)
	c.cmd.Env = append(append(os.Environ(), "NODEDNS_TEST_RUN_MAIN=1"), env...)
	c.cmd.Dir, c.cmd.Stdout, c.cmd.Stderr = dir, c, c
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.err = c.cmd.Wait(); close(c.done) }()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.done
		if t.Failed() {
			t.Logf("the process said:\n%s", c.said())
		}
	})
	return c
}

// start writes the Corefile and launches the program with it, and waits until it is ready. PORT in the text is replaced.
func start(t *testing.T, corefile string, args ...string) *cacheProcess {
	t.Helper()
	return startProgram(t, os.Args[0], corefile, args...)
}

// startProgram is start with another build of the program.
func startProgram(t *testing.T, program, corefile string, args ...string) *cacheProcess {
	t.Helper()
	dir, port := t.TempDir(), freePort(t)
	write(t, filepath.Join(dir, "Corefile"), strings.ReplaceAll(corefile, "PORT", port))
	c := launchProgram(t, program, dir, port, nil, append([]string{"-conf", "Corefile"}, args...)...)
	c.waitReady()
	return c
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".tmp", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".tmp", file); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for cond; the process must not end meanwhile.
func (c *cacheProcess) eventually(what string, cond func() bool) {
	c.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-c.done:
			c.t.Fatalf("the process ended (%v) before: %s", c.err, what)
		case <-deadline:
			c.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func (c *cacheProcess) waitReady() {
	c.t.Helper()
	c.eventually("the process is ready", func() bool { return strings.Contains(c.said(), "msg=ready") })
}

// exits waits for the end and returns the exit code.
func (c *cacheProcess) exits() int {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		c.t.Fatal("the process does not end within 20 s")
	}
	if exit, ok := errors.AsType[*exec.ExitError](c.err); ok {
		return exit.ExitCode()
	}
	return 0
}

func (c *cacheProcess) signal(s os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// ask asks for an A record and returns the address, or what else came.
func ask(ctx context.Context, addr, network, name string) string {
	client := &dns.Client{Net: network, Timeout: 5 * time.Second}
	m, _, err := client.ExchangeContext(ctx, new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), addr)
	switch {
	case err != nil:
		return err.Error()
	case m.Rcode != dns.RcodeSuccess:
		return dns.RcodeToString[m.Rcode]
	case len(m.Answer) == 0:
		return "no answer"
	}
	if a, ok := m.Answer[0].(*dns.A); ok {
		return a.A.String()
	}
	return m.Answer[0].String()
}

func (c *cacheProcess) ask(name string) string {
	return ask(c.t.Context(), "127.0.0.1:"+c.port, "udp", name)
}

// get fetches a page.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// metric reads one series, "" if it is not there.
func metric(t *testing.T, addr, series string) string {
	t.Helper()
	_, body := get(t, "http://"+addr+"/metrics")
	if m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (.*)$`).FindStringSubmatch(body); m != nil {
		return m[1]
	}
	return ""
}

// reload asks for a reload and waits until it has been dealt with.
func (c *cacheProcess) reload() {
	c.t.Helper()
	before := strings.Count(c.said(), "reload asked for")
	outcome := func() int {
		s := c.said()
		return strings.Count(s, "configuration reloaded") + strings.Count(s, "reload failed") + strings.Count(s, "configuration unchanged")
	}
	n := outcome()
	c.signal(syscall.SIGHUP)
	c.eventually("the reload is dealt with", func() bool { return strings.Count(c.said(), "reload asked for") > before && outcome() > n })
}

func (c *cacheProcess) write(text string) {
	c.t.Helper()
	write(c.t, filepath.Join(c.dir, "Corefile"), strings.ReplaceAll(text, "PORT", c.port))
}

func block(zone, target string, lines ...string) string {
	return fmt.Sprintf("%s:PORT {\n bind 127.0.0.1\n errors\n %s\n forward . %s\n}\n", zone, strings.Join(lines, "\n "), target)
}
