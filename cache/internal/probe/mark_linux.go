package probe

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

func setMark(c syscall.RawConn, mark uint32) error {
	var err error
	if ctl := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)) }); ctl != nil {
		return ctl
	}
	if err != nil {
		return fmt.Errorf("marking the socket (needs CAP_NET_ADMIN): %w", err)
	}
	return nil
}
