package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/console"
)

// prefix begins the name of every run folder; nothing else is ever swept.
const prefix = "nodedns-bed-"

// minShared is the room in /dev/shm (bytes) from which on run folders go there: memory is faster than disk for etcd and
// for the nodes' disk images.
const minShared = 3 << 30

// A Workspace is the folder of one run: logs, keys, data. Its owner holds a lock on it.
type Workspace struct {
	dir  string
	lock *os.File
	once sync.Once
}

// NewWorkspace removes what earlier runs that were killed have left, and makes a folder for this one.
func NewWorkspace(con *console.Console, name string) (*Workspace, error) {
	Sweep(con)
	dir, err := os.MkdirTemp(base(), prefix+name+"-")
	if err != nil {
		return nil, fmt.Errorf("making a run folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making a lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("locking the run folder: %w", err)
	}
	return &Workspace{dir: dir, lock: lock}, nil
}

// Path returns a path in the run folder.
func (w *Workspace) Path(elem ...string) string {
	return filepath.Join(append([]string{w.dir}, elem...)...)
}

// Close removes the folder.
func (w *Workspace) Close() {
	w.once.Do(func() {
		_ = os.RemoveAll(w.dir) // what cannot be removed now, the next run's sweep removes
		w.lock.Close()
	})
}

func base() string {
	var s unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &s); err == nil && s.Bavail*uint64(s.Bsize) >= minShared {
		return "/dev/shm"
	}
	return os.TempDir()
}

// Sweep removes the run folders whose owner is gone. The lock tells: the kernel drops it with the owner, whatever ended
// it, and the owner's children, which would still use the folder, get SIGKILL at the same moment. A folder without a
// lock file is one whose owner is just making it.
func Sweep(con *console.Console) {
	for _, b := range []string{"/dev/shm", os.TempDir()} {
		found, err := os.ReadDir(b)
		if err != nil {
			continue
		}
		for _, e := range found {
			if !strings.HasPrefix(e.Name(), prefix) {
				continue
			}
			dir := filepath.Join(b, e.Name())
			f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				con.Step("removing %s, left by a run that was killed", dir)
				_ = os.RemoveAll(dir)
			}
			f.Close()
		}
	}
}
