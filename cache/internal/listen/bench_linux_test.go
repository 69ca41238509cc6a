package listen

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// benchServer is the variable that makes the test binary a server to be measured from
// outside, so that its CPU time is its own.
const benchServer = "LISTEN_BENCH_SERVER"

// The servers: what any responder costs here, ours, and the design that was rejected.
//
//   - floor: receive a batch, flip bits, send it, in a blocking receive.
//   - hit, miss: an Endpoint whose handler does as little as the floor.
//   - thread: as floor, but a goroutine with a thread of its own in the blocking receive
//     as the runtime knows it.
func runBenchServer(kind string) {
	if kind == "floor" || kind == "thread" {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		}
		if err == nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
			var sa unix.Sockaddr
			sa, err = unix.Getsockname(fd)
			fmt.Printf("127.0.0.1:%d\n", sa.(*unix.SockaddrInet4).Port)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		echoForever(fd, kind == "thread")
	}
	h := stub{}
	if kind == "miss" {
		h.resolve = func(_ context.Context, buf, query []byte, _ wire.Origin) []byte { return echo(buf, query) }
	}
	ep, err := Listen(Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, h, slog.New(slog.DiscardHandler), NewMetrics(nil))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(ep.Addr())
	_ = ep.Run(context.Background())
}

func echoForever(fd int, known bool) {
	runtime.LockOSThread()
	b := newBatch(false)
	for {
		var n uintptr
		var errno syscall.Errno
		if known {
			n, _, errno = syscall.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.recv[0])), batchSize, unix.MSG_WAITFORONE, 0, 0)
		} else {
			n, _, errno = syscall.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.recv[0])), batchSize, unix.MSG_WAITFORONE, 0, 0)
		}
		if errno != 0 {
			continue
		}
		for i := range int(n) {
			msg, _ := b.packet(i)
			msg[2] |= 0x80
			b.reply(i, msg)
		}
		b.flush(uintptr(fd))
		b.recycle(int(n))
	}
}

// BenchmarkServer measures the CPU time of a server per answer (server-µs/op), the
// answers per second, and at a fixed rate the 99th percentile of the latency. Compare the
// rows of one run; the machine matters more than the code.
func BenchmarkServer(b *testing.B) {
	for _, kind := range []string{"floor", "hit", "thread", "miss"} {
		b.Run("full/"+kind, func(b *testing.B) { benchmarkServer(b, kind, 0) })
	}
	for _, kind := range []string{"floor", "hit", "thread", "miss"} {
		b.Run("20k/"+kind, func(b *testing.B) { benchmarkServer(b, kind, 20000) })
	}
}

func benchmarkServer(b *testing.B, kind string, rate int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServer+"="+kind)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	// Server and load on cores of their own, where there are two. The thread that
	// starts the server lends it its affinity, and keeps its own for the load.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		b.Fatal(err)
	}
	defer unix.SchedSetaffinity(0, &all)
	pin(b, 0)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	pin(b, 1)
	defer cmd.Wait()
	defer cmd.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	load := newLoad(b, netip.MustParseAddrPort(strings.TrimSpace(line)))
	load.run(b, 2000, rate) // warm
	load.latencies = load.latencies[:0]
	before := cpuTime(b, cmd.Process.Pid)
	b.ResetTimer()
	load.run(b, b.N, rate)
	b.StopTimer()
	used := cpuTime(b, cmd.Process.Pid) - before
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "server-µs/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "answers/s")
	if rate > 0 {
		slices.Sort(load.latencies)
		b.ReportMetric(float64(load.latencies[len(load.latencies)*99/100].Microseconds()), "p99-µs")
	}
}

func pin(b *testing.B, cpu int) {
	b.Helper()
	if runtime.NumCPU() < 2 {
		return
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		b.Fatal(err)
	}
}

// cpuTime is the user and system time of a process.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ
}

// load asks from some sockets, with a window of questions under way.
type load struct {
	conns     []*net.UDPConn
	sent      [1 << 16]time.Time // by ID
	latencies []time.Duration
}

const (
	loadSockets = 8
	loadWindow  = 100
)

func newLoad(b *testing.B, addr netip.AddrPort) *load {
	l := new(load)
	for range loadSockets {
		c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(addr))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		l.conns = append(l.conns, c)
	}
	return l
}

// run has n questions answered, at so many a second if rate is not 0.
func (l *load) run(b *testing.B, n, rate int) {
	q, buf := question(0, "bench"), make([]byte, 512)
	began, sent, got := time.Now(), 0, 0
	lastReply := began
	for got < n {
		for sent < n && sent-got < loadWindow {
			if rate > 0 && time.Since(began) < time.Duration(sent)*time.Second/time.Duration(rate) {
				break
			}
			binary.BigEndian.PutUint16(q, uint16(sent))
			l.sent[uint16(sent)] = time.Now()
			if _, err := l.conns[sent%loadSockets].Write(q); err != nil {
				b.Fatal(err)
			}
			sent++
		}
		for _, c := range l.conns {
			for {
				m := receiveNow(c, buf)
				if m < 0 {
					break
				}
				lastReply = time.Now()
				if rate > 0 {
					l.latencies = append(l.latencies, lastReply.Sub(l.sent[id(buf)]))
				}
				got++
			}
		}
		if time.Since(lastReply) > 2*time.Second && sent > got {
			b.Fatalf("%d of %d questions unanswered", sent-got, sent)
		}
	}
}

// receiveNow reads a packet if there is one, else returns -1.
func receiveNow(c *net.UDPConn, buf []byte) int {
	n := -1
	raw, err := c.SyscallConn()
	if err != nil {
		return -1
	}
	_ = raw.Control(func(fd uintptr) {
		if m, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); err == nil {
			n = m
		}
	})
	return n
}
