package uml

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// exchange is where the first process sees the folder shared with the host, once /tmp is covered.
const exchange = "/mnt"

// legacyBin is a folder in PATH in which the plain iptables commands are those of the legacy flavour: the kernel of the
// package has no nf_tables families.
const legacyBin = "/run/legacy"

// Init makes this process the first one of a kernel that Run booted; it does not return then. Everywhere else it does
// nothing.
func Init() {
	folder := os.Getenv(folderVar)
	if os.Getpid() != 1 || folder == "" {
		return
	}
	err := start(folder)
	if err != nil {
		_ = os.WriteFile(filepath.Join(exchange, errorFile), []byte(err.Error()), 0o600)
		fmt.Fprintln(os.Stderr, err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// start makes a machine of the bare kernel, runs the job and notes its exit code.
func start(folder string) error {
	if err := unix.Mount("none", exchange, "hostfs", 0, folder); err != nil {
		return fmt.Errorf("mounting the shared folder: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(exchange, jobFile))
	if err != nil {
		return fmt.Errorf("reading the job: %w", err)
	}
	var j job
	if err := json.Unmarshal(text, &j); err != nil {
		return fmt.Errorf("reading the job: %w", err)
	}
	if err := mounts(j.Shared); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("uml")); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	if err := loadModules(j.ModuleDir, j.Modules); err != nil {
		return err
	}
	// From here on the kernel has all the modules it gets. It would still run modprobe whenever a program asks for a match,
	// target or protocol it does not know, and iptables asks for many: that is nine tenths of what a command costs here.
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte("\n"), 0o600); err != nil {
		return fmt.Errorf("switching modprobe off: %w", err)
	}
	if err := legacyCommands(); err != nil {
		return err
	}
	code, err := runJob(j)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(exchange, exitFile), []byte(strconv.Itoa(code)), 0o600)
}

// mounts gives the machine file systems of its own.
func mounts(shared []string) error {
	type mount struct{ source, target, kind, data string }
	all := []mount{
		{"proc", "/proc", "proc", ""},
		{"sys", "/sys", "sysfs", ""},
		{"dev", "/dev", "devtmpfs", ""},
		{"devpts", "/dev/pts", "devpts", ""},
		{"shm", "/dev/shm", "tmpfs", ""},
		{"run", "/run", "tmpfs", "mode=755"},
		{"tmp", "/tmp", "tmpfs", "mode=1777"},
		{"cgroup", "/sys/fs/cgroup", "cgroup2", ""},
	}
	for _, s := range shared {
		all = append(all, mount{"none", s, "hostfs", s})
	}
	for _, m := range all {
		// The root is read-only: what is missing there can only be made on what was mounted before.
		if err := os.MkdirAll(m.target, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("making %s: %w", m.target, err)
		}
		if err := unix.Mount(m.source, m.target, m.kind, 0, m.data); err != nil && (m.target != "/dev" || !errors.Is(err, unix.EBUSY)) {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	return nil
}

// loadModules loads modules after what they depend on. Each is loaded once.
func loadModules(dir string, names []string) error {
	f, err := os.Open(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return fmt.Errorf("reading module dependencies: %w", err)
	}
	defer func() { _ = f.Close() }()
	paths, needs := map[string]string{}, map[string][]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		path, deps, ok := strings.Cut(s.Text(), ":")
		if !ok {
			continue
		}
		paths[moduleName(path)] = path
		needs[moduleName(path)] = strings.Fields(deps)
	}
	loaded := map[string]bool{}
	load := func(path string) error {
		if loaded[path] {
			return nil
		}
		loaded[path] = true
		m, err := os.Open(filepath.Join(dir, path))
		if err != nil {
			return fmt.Errorf("loading module %s: %w", path, err)
		}
		defer func() { _ = m.Close() }()
		if err := unix.FinitModule(int(m.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("loading module %s: %w", path, err)
		}
		return nil
	}
	for _, name := range names {
		path, ok := paths[moduleName(name)]
		if !ok {
			continue // built in
		}
		deps := needs[moduleName(name)]
		for i := range deps { // listed with the last to be loaded first
			if err := load(deps[len(deps)-1-i]); err != nil {
				return err
			}
		}
		if err := load(path); err != nil {
			return err
		}
	}
	return nil
}

// moduleName is the name of a module file as the kernel has it.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// legacyCommands makes the plain iptables commands those of the legacy flavour.
func legacyCommands() error {
	multi, err := exec.LookPath("/usr/sbin/xtables-legacy-multi")
	if err != nil {
		return nil //nolint:nilerr // a program that needs iptables will say so
	}
	if err := os.MkdirAll(legacyBin, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			if err := os.Symlink(multi, filepath.Join(legacyBin, name+suffix)); err != nil {
				return err
			}
		}
	}
	return nil
}

// runJob runs the command and reaps whatever else ends, until it ends itself.
func runJob(j job) (int, error) {
	out, err := os.OpenFile(filepath.Join(exchange, outputFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = out.Close() }()
	env := append([]string{
		"PATH=" + legacyBin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/run", "TMPDIR=/tmp",
	}, j.Env...)
	null, err := os.Open(os.DevNull)
	if err != nil {
		return -1, err
	}
	defer func() { _ = null.Close() }()
	p, err := os.StartProcess(j.Command[0], j.Command, &os.ProcAttr{Dir: j.Dir, Env: env, Files: []*os.File{null, out, out}})
	if err != nil {
		return -1, fmt.Errorf("starting %s: %w", j.Command[0], err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return -1, fmt.Errorf("waiting for %s: %w", j.Command[0], err)
		case pid == p.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == p.Pid && status.Exited():
			return status.ExitStatus(), nil
		}
	}
}
