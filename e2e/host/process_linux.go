package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// A Command says what child to start and where.
type Command struct {
	// Name is for messages.
	Name string
	// Path is the program; a bare name is looked up in PATH.
	Path string
	Args []string
	// Env is added to this process's environment.
	Env []string
	// Log is the file that standard output and error are appended to.
	Log string
	// Namespace is the network namespace; it must stay open for as long as the child runs.
	Namespace *Namespace
	// Nice is the child's priority, -20 (first) to 19; 0 changes nothing.
	Nice int
	// Alone gives the child a PID namespace: all its descendants end with it. For programs that leave helpers behind.
	Alone bool
}

// A Process is a running child. It gets SIGKILL from the kernel when this process ends, however that happens.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts the child.
func Start(c Command) (*Process, error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", c.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own keeps the terminal's Ctrl-C from the child: this process stops its children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if c.Alone {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	}
	if err := c.Namespace.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	if c.Nice != 0 {
		renice(cmd.Process.Pid, c.Nice)
	}
	p := &Process{name: c.Name, log: c.Log, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// renice sets the priority of a process that has just started, and so that of all it will start. Where the kernel groups
// processes by session, only the group's own value counts against other sessions. A system that allows neither runs on
// with equal priorities.
func renice(pid, nice int) {
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, pid, nice)
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), fmt.Append(nil, nice), 0)
}

// Pid is the child's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err tells why the child has ended, with the last lines of its log. Nil while it runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		err := p.err
		if err == nil {
			err = errors.New("exit status 0")
		}
		return fmt.Errorf("%s has ended: %w; its last lines (%s):\n%s", p.name, err, p.log, Tail(p.log, 15))
	default:
		return nil
	}
}

// Signal sends a signal to the child.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signalling %s: %w", p.name, err)
	}
	return nil
}

// Stop asks the child to end, and after grace ends it. It returns when the child is gone. A nil Process is gone already.
func (p *Process) Stop(grace time.Duration) {
	if p == nil {
		return
	}
	if grace > 0 {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
		select {
		case <-p.done:
			return
		case <-time.After(grace):
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Until calls try every 50 ms until it returns nil. It gives up when ctx ends, after limit, or when one of the
// processes has ended, and then returns the reason with the last error of try.
func Until(ctx context.Context, what string, limit time.Duration, try func(context.Context) error, ps ...*Process) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		for _, p := range ps {
			if dead := p.Err(); dead != nil {
				return fmt.Errorf("waiting for %s: %w", what, dead)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting %s for %s: %w", limit, what, errors.Join(context.Cause(ctx), err))
		case <-t.C:
		}
	}
}

// Tail returns the last n lines of a file, or the reason why it cannot.
func Tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
