package host

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// FollowParent makes this program end as if by SIGTERM when the go command that runs it (go run) is killed. That command
// passes Ctrl-C on, since the whole terminal gets it, but dies of SIGTERM alone, as CI systems send it.
func FollowParent() {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	if err != nil || strings.TrimSpace(string(comm)) != "go" {
		return
	}
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0) // cannot fail with a valid signal
}
