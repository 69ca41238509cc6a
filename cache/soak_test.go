package main

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The soak of BENCHMARKS.md is -soak 60s -soak.rate 20000, without the race detector.
var (
	soakFor  = flag.Duration("soak", 4*time.Second, "how long TestSoak asks new names")
	soakRate = flag.Int("soak.rate", 1500, "and how many a second")
)

// echoStream is an upstream over TCP that answers whatever it is asked at the least cost.
func echoStream(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_ = echoFrames(c)
			})
		}
	})
	return l.Addr().String()
}

// echoFrames answers all that has come in one write.
func echoFrames(c net.Conn) error {
	in, filled := make([]byte, 1<<16), 0
	var out []byte
	for {
		n, err := c.Read(in[filled:])
		if err != nil {
			return err
		}
		filled += n
		rest := in[:filled]
		for out = out[:0]; len(rest) >= 2; {
			size := int(binary.BigEndian.Uint16(rest))
			if len(rest) < 2+size {
				break
			}
			out = appendEcho(out, rest[2:2+size])
			rest = rest[2+size:]
		}
		filled = copy(in, rest)
		if _, err := c.Write(out); err != nil {
			return err
		}
	}
}

// appendEcho appends the framed reply to a query for an address: its question and one record.
func appendEcho(out, query []byte) []byte {
	end := 12 + bytes.IndexByte(query[12:], 0) + 5
	at := len(out)
	out = append(out, 0, 0)
	out = append(out, query[:end]...)
	out[at+2+2], out[at+2+7], out[at+2+11] = query[2]|0x80, 1, 0
	out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
	binary.BigEndian.PutUint16(out[at:], uint16(len(out)-at-2))
	return out
}

// soakLoad asks for names that nobody has asked for before.
type soakLoad struct {
	conn     *net.UDPConn
	asked    int
	answered atomic.Int64
}

func newSoakLoad(t *testing.T, port string) *soakLoad {
	t.Helper()
	c, err := net.Dial("udp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	l := &soakLoad{conn: c.(*net.UDPConn)}
	_ = l.conn.SetReadBuffer(8 << 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := l.conn.Read(buf)
			if err != nil {
				return
			}
			if n > 12 && buf[3]&15 == 0 && buf[7] == 1 {
				l.answered.Add(1)
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return l
}

// run asks at a steady rate for d.
func (l *soakLoad) run(t *testing.T, rate int, d time.Duration) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	first := l.asked
	for begin := time.Now(); time.Since(begin) < d; <-tick.C {
		for due := first + int(time.Since(begin).Seconds()*float64(rate)); l.asked < due; l.asked++ {
			q := []byte{byte(l.asked >> 8), byte(l.asked), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 8}
			q = fmt.Appendf(q, "n%07d\x04soak\x00\x00\x01\x00\x01", l.asked)
			if _, err := l.conn.Write(q); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// usage is what a process holds.
type usage struct {
	resident   int // MiB
	goroutines int
}

func (c *cacheProcess) usage(prom string) (u usage) {
	c.t.Helper()
	f, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(f)) {
		if fields := strings.Fields(line); fields[0] == "VmRSS:" {
			kib, _ := strconv.Atoi(fields[1])
			u.resident = kib >> 10
		}
	}
	if u.goroutines, err = strconv.Atoi(metric(c.t, prom, "go_goroutines")); err != nil || u.resident == 0 {
		c.t.Fatalf("usage %+v: %v", u, err)
	}
	return u
}

// worst is the most of both.
func (u usage) worst(v usage) usage {
	return usage{max(u.resident, v.resident), max(u.goroutines, v.goroutines)}
}

// TestSoak asks new names without pause, so that every question goes upstream, is kept, and takes an older answer's place.
// Once the caches are full neither memory nor goroutines grow, and nothing is lost.
func TestSoak(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "nodedns-cache")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	up, prom := echoStream(t), "127.0.0.1:"+freePort(t)
	c := startProgram(t, binary, block(".", up+" {\n force_tcp\n }", "cache 30 {\n success 2000\n }", "prometheus "+prom))
	l := newSoakLoad(t, c.port)
	l.run(t, *soakRate, max(*soakFor/4, time.Duration(3000/float64(*soakRate)*float64(time.Second)))) // until all is full and warm
	var before, after usage
	for i := range 8 {
		l.run(t, *soakRate, *soakFor/10)
		now := c.usage(prom)
		t.Logf("%+v after %d questions", now, l.asked)
		if i < 4 {
			before = before.worst(now)
		} else {
			after = after.worst(now)
		}
	}
	deadline := time.Now().Add(5 * time.Second)
	for l.answered.Load() < int64(l.asked) && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("%d asked, %d answered; at most %+v in the first half, %+v in the second", l.asked, l.answered.Load(), before, after)
	if lost := l.asked - int(l.answered.Load()); lost*1000 > l.asked {
		t.Errorf("%d of %d questions have no answer", lost, l.asked)
	}
	if after.resident > before.resident*5/4+4 || after.goroutines > before.goroutines*2+50 {
		t.Errorf("grows: %+v, then %+v", before, after)
	}
}

// TestOutOfDescriptors: while the process can take no connection it says so now and then, does not spin and goes on over
// UDP; afterwards all is as before.
func TestOutOfDescriptors(t *testing.T) {
	up, prom := newUpstream(t, "192.0.2.1"), "127.0.0.1:"+freePort(t)
	c := start(t, block(".", up.addr, "cache 30", "prometheus "+prom))
	if got := c.ask("a.test"); got != "192.0.2.1" {
		t.Fatal(got)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	few := uint64(len(open) + 3)
	if err := unix.Prlimit(c.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: few, Max: few}, nil); err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for range 20 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+c.port)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	const message = "accepting a connection failed"
	c.eventually("it tells", func() bool { return strings.Contains(c.said(), message) })
	for range 10 {
		if got := c.ask("a.test"); got != "192.0.2.1" {
			t.Errorf("over UDP: %s", got)
		}
	}
	for _, conn := range conns {
		conn.Close()
	}
	c.eventually("TCP is back", func() bool { return ask(t.Context(), "127.0.0.1:"+c.port, "tcp", "a.test") == "192.0.2.1" })
	if n := strings.Count(c.said(), message); n != 1 {
		t.Errorf("told %d times", n)
	}
	if n, err := strconv.Atoi(metric(t, prom, "nodedns_accept_errors_total")); err != nil || n < 1 || n > 400 {
		t.Errorf("%d failures counted, %v", n, err)
	}
}
