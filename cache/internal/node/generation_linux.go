package node

import (
	"encoding/hex"
	"fmt"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nftGeneration asks nf_tables for its generation number, which each committed change of any table raises.
func nftGeneration() (string, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	msgs, err := conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN),
			Flags: netlink.Request,
		},
		Data: []byte{unix.AF_UNSPEC, 0, 0, 0}, // nfgenmsg
	})
	if err != nil {
		return "", fmt.Errorf("asking nf_tables for its generation: %w", err)
	}
	for _, m := range msgs {
		if len(m.Data) < 4 {
			continue
		}
		attrs, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return "", err
		}
		for attrs.Next() {
			if attrs.Type() == unix.NFTA_GEN_ID {
				return hex.EncodeToString(attrs.Bytes()), nil
			}
		}
	}
	return "", fmt.Errorf("asking nf_tables for its generation: no number in the answer")
}

// getInfo is IPT_SO_GET_INFO and IP6T_SO_GET_INFO; the answer is struct ipt_getinfo (linux/netfilter_ipv4/ip_tables.h):
// the table's name, hooks, and at its end the number of entries and their size.
const (
	getInfo       = 64
	sizeofGetInfo = 84
)

// legacyGeneration has no number to ask for; the count and size of the table's entries change with every rule that comes
// or goes. What keeps both the full check finds.
func legacyGeneration(fam family, table string) (string, error) {
	domain, level := unix.AF_INET, unix.IPPROTO_IP
	if fam == v6 {
		domain, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	var info [sizeofGetInfo]byte
	copy(info[:], table)
	size := uint32(len(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), getInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 && errno != unix.ENOENT {
		return "", fmt.Errorf("asking for the size of table %s: %w", table, errno)
	}
	return hex.EncodeToString(info[32:]), nil
}
