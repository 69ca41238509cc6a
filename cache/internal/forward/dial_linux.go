package forward

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// unacked is how long sent data may go unacknowledged before the kernel gives a
// connection up, in milliseconds; its own default is many minutes.
const unacked = 3000

func dialControl(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, unacked)
	}); cerr != nil {
		return cerr
	}
	return err
}
