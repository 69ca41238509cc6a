package uml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// folderVar names the folder that host and kernel exchange files through; the kernel passes what it does not know on
// its command line to its first process as environment.
const folderVar = "UML_RUN_FOLDER"

// Files of that folder.
const (
	jobFile    = "job.json"
	outputFile = "output"
	exitFile   = "exit"
	errorFile  = "error"
)

// job is what the first process must know.
type job struct {
	Command, Env, Shared []string
	Dir                  string
	ModuleDir            string
	Modules              []string
}

// Run boots a kernel, runs the command in it and returns its exit code. When it returns nothing of the kernel is left,
// also if ctx ended or the timeout passed, which are errors.
func Run(ctx context.Context, cfg Config) (exitCode int, err error) {
	if err := cfg.Validate(); err != nil {
		return -1, fmt.Errorf("running in User-Mode Linux: %w", err)
	}
	cfg = cfg.withDefaults()
	if err := Missing(); err != nil {
		return -1, err
	}
	modules, err := moduleDir()
	if err != nil {
		return -1, err
	}
	self, err := os.Executable()
	if err != nil {
		return -1, err
	}
	folder, err := os.MkdirTemp("", "uml-run-")
	if err != nil {
		return -1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	text, err := json.Marshal(job{
		Command: cfg.Command, Env: cfg.Env, Dir: cfg.Dir, Shared: cfg.Shared, ModuleDir: modules, Modules: cfg.Modules,
	})
	if err != nil {
		return -1, err
	}
	if err := os.WriteFile(filepath.Join(folder, jobFile), text, 0o600); err != nil {
		return -1, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("timeout of %s", cfg.Timeout))
	defer cancel()
	console, err := boot(ctx, folder, self, cfg)
	if ctx.Err() != nil {
		return -1, fmt.Errorf("running in User-Mode Linux: %w", context.Cause(ctx))
	}
	code, readErr := os.ReadFile(filepath.Join(folder, exitFile))
	if readErr != nil {
		why, _ := os.ReadFile(filepath.Join(folder, errorFile))
		return -1, fmt.Errorf("running in User-Mode Linux: the kernel ended without a result: %w: %s\n%s", err, why, console)
	}
	return strconv.Atoi(strings.TrimSpace(string(code)))
}

// boot runs the kernel until it halts, copying the program's output as it comes. It returns the console's last words.
func boot(ctx context.Context, folder, self string, cfg Config) (console string, err error) {
	console = filepath.Join(folder, "console")
	log, err := os.Create(console)
	if err != nil {
		return "", err
	}
	defer func() { _ = log.Close() }()
	out, err := os.Create(filepath.Join(folder, outputFile))
	if err != nil {
		return "", err
	}
	defer func() { _ = out.Close() }()
	preload, err := Preload(ctx, folder)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, kernelCommand,
		"umid="+filepath.Base(folder), "uml_dir="+folder+"/", "mem="+strconv.Itoa(cfg.Memory)+"M",
		"root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "init="+self, folderVar+"="+folder,
		"con=null", "con0=null,fd:1", "quiet", "panic=-1")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "TMPDIR="+memoryDir(folder))
	cmd.Env = append(cmd.Env, preload...)
	// The kernel's processes are processes of the host. In a namespace of process numbers, whose first process the kernel
	// is, they end with it, however it ends; and it ends with us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("booting: %w", err)
	}
	ended := make(chan struct{})
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		follow(cfg.Output, out, ended)
	}()
	err = cmd.Wait()
	close(ended)
	<-copied
	text, _ := os.ReadFile(console)
	return string(text[max(0, len(text)-4096):]), err
}

// memoryDir is where the kernel keeps its memory: in memory if possible.
func memoryDir(otherwise string) string {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		return "/dev/shm"
	}
	return otherwise
}

// follow copies what is appended to f until ended, and then the rest.
func follow(w io.Writer, f io.Reader, ended <-chan struct{}) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := io.Copy(w, f); err != nil {
			return
		}
		select {
		case <-ended:
			_, _ = io.Copy(w, f)
			return
		case <-tick.C:
		}
	}
}
