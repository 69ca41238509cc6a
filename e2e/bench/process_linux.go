package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cores of the bench: the server has one to itself.
const (
	serverCore = 0
	loadCore   = 1
)

// process is a program pinned to one core.
type process struct {
	cmd *exec.Cmd
	log *os.File
}

// start runs argv on core; its output goes to a file in dir.
func start(ctx context.Context, dir string, core int, argv ...string) (*process, error) {
	log, err := os.CreateTemp(dir, "log-*")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := onCore(core, cmd.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", argv[0], err)
	}
	return &process{cmd: cmd, log: log}, nil
}

// onCore calls f on a thread bound to core: what f starts inherits the binding.
func onCore(core int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its binding
		var set unix.CPUSet
		set.Set(core)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- fmt.Errorf("binding to core %d: %w", core, err)
			return
		}
		done <- f()
	}()
	return <-done
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.log.Close()
}

// output is what the program printed, for an error message.
func (p *process) output() string {
	b, _ := os.ReadFile(p.log.Name())
	return strings.TrimSpace(string(b[max(0, len(b)-2000):]))
}

// cpu is the user and system time p has used.
func (p *process) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The command name in parentheses may hold spaces; fields count from behind it.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	if err != nil {
		return 0, err
	}
	return time.Duration(user+system) * (time.Second / 100), nil // USER_HZ is 100 on every Linux port that matters
}

// rss is p's resident memory in MiB.
func (p *process) rss() (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	return kib / 1024, err
}

// awaitAnswer waits until addr answers a question, and fails with what the
// program printed if it does not.
func (p *process) awaitAnswer(addr string) error {
	end := time.Now().Add(10 * time.Second)
	for time.Now().Before(end) {
		if _, err := ask(addr, "ready.bench.svc.cluster.local"); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s does not answer on %s:\n%s", p.cmd.Path, addr, p.output())
}

// ask sends one A question and returns the last four bytes of the reply, the
// address if there is one.
func ask(addr, name string) ([4]byte, error) {
	var a [4]byte
	c, err := net.Dial("udp", addr)
	if err != nil {
		return a, err
	}
	defer c.Close()
	q := []byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		q = append(append(q, byte(len(label))), label...)
	}
	q = append(q, 0, 0, 1, 0, 1)
	c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write(q); err != nil {
		return a, err
	}
	buf := make([]byte, 512)
	n, err := c.Read(buf)
	if err != nil {
		return a, err
	}
	copy(a[:], buf[n-4:n])
	return a, nil
}
