package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// events watches links, addresses and routes of this network namespace.
type events struct{}

// Watch implements links.
func (events) Watch(ctx context.Context) (<-chan struct{}, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	for _, group := range []uint32{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	} {
		if err := conn.JoinGroup(group); err != nil {
			return nil, errors.Join(fmt.Errorf("joining netlink group %d: %w", group, err), conn.Close())
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	ch := make(chan struct{}, 1)
	go func() {
		defer close(ch)
		defer stop()
		for {
			_, err := conn.Receive()
			// ENOBUFS: events were lost, so something certainly changed.
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				_ = conn.Close()
				return
			}
			select {
			case ch <- struct{}{}:
			default: // one is waiting already and will see this change too
			}
		}
	}()
	return ch, nil
}
