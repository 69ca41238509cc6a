package listen

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookEvery is how long TCP connections serve until the poller is looked at for others.
	lookEvery = 200 * time.Microsecond

	// rested is how long a turn must have been free to show that the processors had time
	// to look for themselves.
	rested = 100 * time.Microsecond
)

// turns bound the share of the processors that TCP connections take.
//
// Connections whose clients never pause are always ready to run, and the scheduler lets
// each of them run before a UDP worker that has just got its packets. So few serve at a
// time, and the others wait where they are not in the way.
//
// That is not all: the runtime looks for new packets when nothing is ready to run, and
// otherwise each 10 ms. So who takes a turn sometimes waits for an event of its own that
// only the poller can deliver, together with all that has arrived for others meanwhile.
type turns struct {
	free chan *turn
	all  []*turn
}

// turn is the right to serve. It belongs to the connection that has taken it.
type turn struct {
	bell   *os.File // an eventfd: each write to it is an event
	raw    syscall.RawConn
	ring   func(fd uintptr) bool
	rung   bool
	looked time.Time // when the poller was last looked at, at least
	ended  time.Time
}

func newTurns(n int) (*turns, error) {
	ts := &turns{free: make(chan *turn, n)}
	for range n {
		t, err := newTurn()
		if err != nil {
			ts.close()
			return nil, err
		}
		ts.all = append(ts.all, t)
		ts.free <- t
	}
	return ts, nil
}

func newTurn() (*turn, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making an eventfd: %w", err)
	}
	t := &turn{bell: os.NewFile(uintptr(fd), "eventfd")}
	t.ring = t.ringOnce
	if t.raw, err = t.bell.SyscallConn(); err != nil {
		t.bell.Close()
		return nil, fmt.Errorf("making an eventfd: %w", err)
	}
	return t, nil
}

func (ts *turns) close() {
	for _, t := range ts.all {
		t.bell.Close()
	}
}

// take waits for a turn, and lets others run before if they may have had no chance to.
func (ts *turns) take() *turn {
	t := <-ts.free
	switch now := time.Now(); {
	case now.Sub(t.ended) > rested:
		t.looked = now
	case now.Sub(t.looked) > lookEvery:
		t.rung = false
		_ = t.raw.Read(t.ring) // fails on a closed one only, and then without waiting
		t.looked = time.Now()
	}
	return t
}

// give gives a turn back.
func (ts *turns) give(t *turn) {
	t.ended = time.Now()
	ts.free <- t
}

// ringOnce returns false when it is called first, for the poller to wait for what it has
// set off.
func (t *turn) ringOnce(fd uintptr) bool {
	if t.rung {
		return true
	}
	t.rung = true
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	n, err := unix.Write(int(fd), one[:])
	return err != nil || n != len(one)
}
