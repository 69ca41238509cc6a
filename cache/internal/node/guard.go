package node

import "fmt"

// Level is how well the kernel ends the interception when the cache does. Higher is better.
type Level uint8

// The levels of the guard.
const (
	// LevelPlain has rules only: after a crash they stay until the next start.
	LevelPlain Level = iota + 1
	// LevelLease ends with the lease, for a crash and for a hang.
	LevelLease
	// LevelSocket ends for Pods with the cache's socket, for host-network clients with the lease.
	LevelSocket
	// LevelOwner ends with the process, for Pods and host network alike, and with the lease for a hang.
	LevelOwner
)

// String names the level as it stands in logs, metrics and flags.
func (l Level) String() string {
	switch l {
	case LevelPlain:
		return "plain"
	case LevelLease:
		return "lease"
	case LevelSocket:
		return "socket"
	case LevelOwner:
		return "owner"
	}
	return "none"
}

// ParseLevel reads the name of a level; "auto" and the empty string give zero, the best there is.
func ParseLevel(s string) (Level, error) {
	switch s {
	case "", "auto":
		return 0, nil
	}
	for _, l := range levels() {
		if l.String() == s {
			return l, nil
		}
	}
	return 0, fmt.Errorf("guard level %q: want auto, owner, socket, lease or plain", s)
}

// levels lists the levels, best first.
func levels() []Level { return []Level{LevelOwner, LevelSocket, LevelLease, LevelPlain} }
