package parts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/console"
)

// Build builds those of the parts that are not there yet and returns the folder that holds them all.
func Build(ctx context.Context, con *console.Console, groups ...[]Part) (bin string, err error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	b := &builder{root: root, bin: filepath.Join(root, "_out", "bin"), con: con}
	if err := os.MkdirAll(b.bin, 0o755); err != nil {
		return "", fmt.Errorf("making the folder for programs: %w", err)
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	todo, rest, err := b.todo(groups)
	if err != nil {
		return "", err
	}
	if rest > time.Minute {
		b.con.Step("building %d programs: about %s the first time on two cores, seconds afterwards", len(todo), console.Short(rest))
	}
	for i, p := range todo {
		if err := b.build(ctx, p, fmt.Sprintf("building %s (%d of %d)", p.Name, i+1, len(todo))); err != nil {
			return "", err
		}
	}
	return b.bin, nil
}

// Root returns the top folder of the repository that holds the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for the repository: %w", err)
	}
	for d := dir; ; d = filepath.Dir(d) {
		b, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && bytes.HasPrefix(b, []byte("module github.com/nodedns/nodedns\n")) {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not inside the nodedns repository: run this from its folder", dir)
		}
	}
}

type builder struct {
	root string
	bin  string
	con  *console.Console
}

// lock makes programs that run at the same time build one after another: the first builds, the others find it done.
func (b *builder) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(b.bin, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the build lock: %w", err)
	}
	for said := false; ; said = true {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { f.Close() }, nil
		}
		if !said {
			b.con.Step("another program is building; waiting for it")
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for the build lock: %w", context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// todo lists the parts that must be built and the time that takes at most. Programs of this repository are always
// among them: go build itself knows best whether their sources have changed.
func (b *builder) todo(groups [][]Part) (todo []Part, cold time.Duration, err error) {
	for _, g := range groups {
		for _, p := range g {
			if p.Module != "" {
				key, err := b.key(p)
				if err != nil {
					return nil, 0, err
				}
				if b.have(p, key) {
					continue
				}
			}
			todo = append(todo, p)
			cold += p.Cold
		}
	}
	return todo, cold, nil
}

// key identifies what a part is built from: its module's files, its flags, and the Go version.
func (b *builder) key(p Part) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%+v %s %s\n", p, runtime.Version(), strings.Join(arguments(p, ""), " "))
	dir := filepath.Join(b.root, "e2e", "components", p.Module)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n", d.Name(), len(text))
		h.Write(text)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading the module of %s: %w", p.Name, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (b *builder) have(p Part, key string) bool {
	stamp, err := os.ReadFile(b.stamp(p))
	if err != nil || string(stamp) != key {
		return false
	}
	_, err = os.Stat(filepath.Join(b.bin, p.Name))
	return err == nil
}

func (b *builder) stamp(p Part) string { return filepath.Join(b.bin, "."+p.Name+".key") }

// build writes beside the final name and renames, so that an interrupted build leaves no half program; the compiled
// packages stay in Go's cache, from which the next try goes on.
func (b *builder) build(ctx context.Context, p Part, what string) (err error) {
	if p.Module != "" {
		done := b.con.Long(what, p.Cold)
		defer func() { done(err) }()
	}
	out := filepath.Join(b.bin, "."+p.Name+".new")
	cmd := exec.CommandContext(ctx, "go", arguments(p, out)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = b.root
	if p.Module != "" {
		cmd.Dir = filepath.Join(b.root, "e2e", "components", p.Module)
	}
	cgo := "0"
	if p.CGO {
		cgo = "1"
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=", "GOWORK=off", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if text, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("building %s: %w", p.Name, context.Cause(ctx))
		}
		return fmt.Errorf("building %s in %s: %w\n%s", p.Name, cmd.Dir, err, text)
	}
	if err := os.Rename(out, filepath.Join(b.bin, p.Name)); err != nil {
		return fmt.Errorf("putting %s in place: %w", p.Name, err)
	}
	if p.Module == "" {
		return nil
	}
	key, err := b.key(p)
	if err != nil {
		return err
	}
	return os.WriteFile(b.stamp(p), []byte(key), 0o644)
}

func arguments(p Part, out string) []string {
	return []string{
		"build", "-trimpath", "-buildvcs=false",
		"-ldflags", strings.TrimSpace("-s -w " + p.Stamp), "-tags", p.Tags, "-o", out, p.Package,
	}
}
