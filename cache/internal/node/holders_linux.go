package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Holder is a socket of another process bound to a port of ours.
type Holder struct {
	// Network is udp or tcp, Addr what the socket is bound to.
	Network string
	Addr    netip.AddrPort
	UID     uint32
	// Inode names the socket in /proc/PID/fd.
	Inode uint32
	// Cgroup is the path of the owner's control group, empty where the kernel does not say.
	Cgroup string
	// PID and Command are those of the owner, zero where its process is not visible from here.
	PID     int
	Command string
}

// String gives all that is known, for a message to a person.
func (h Holder) String() string {
	s := fmt.Sprintf("%s %s held by uid %d, socket inode %d", h.Network, h.Addr, h.UID, h.Inode)
	if h.Cgroup != "" {
		s += ", cgroup " + h.Cgroup
	}
	if h.PID != 0 {
		s += fmt.Sprintf(", pid %d", h.PID)
	}
	if h.Command != "" {
		s += " (" + h.Command + ")"
	}
	return s
}

// Holders lists the sockets of other processes that could take questions meant for us: those bound to port on one of
// our addresses or on all addresses. SO_REUSEPORT lets two processes bind silently, so a bind that works proves nothing.
func (n *Node) Holders(port uint16) ([]Holder, error) {
	all, err := holders(port)
	if err != nil {
		return nil, fmt.Errorf("looking who holds port %d: %w", port, err)
	}
	var out []Holder
	for _, h := range all {
		if slices.ContainsFunc(n.served(), h.covers) {
			out = append(out, h)
		}
	}
	return out, nil
}

// covers says whether a socket bound as h gets packets for a.
func (h Holder) covers(a netip.Addr) bool {
	bound := h.Addr.Addr().Unmap()
	if bound == a {
		return true
	}
	// The wildcard of IPv6 takes IPv4 as well unless the socket asked for IPV6_V6ONLY, which the kernel does not tell
	// in every version: better one holder too many.
	return bound.IsUnspecified() && (bound.Is6() || a.Is4())
}

// Layout of inet_diag_sockid, inet_diag_req_v2 and inet_diag_msg (linux/inet_diag.h).
const (
	sizeofDiagReq = 56
	sizeofDiagMsg = 72
	// INET_DIAG_CGROUP_ID, since Linux 5.9.
	diagCgroupID = 21
	tcpListen    = 10 // TCP_LISTEN
	tcpClose     = 7  // TCP_CLOSE, the state of an unconnected UDP socket
)

// holders asks the kernel (sock_diag) for the sockets bound to port.
func holders(port uint16) ([]Holder, error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	mine := ownSockets()
	var out []Holder
	for _, q := range []struct {
		network string
		proto   byte
		state   uint32
	}{{"udp", unix.IPPROTO_UDP, 1 << tcpClose}, {"tcp", unix.IPPROTO_TCP, 1 << tcpListen}} {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			req := make([]byte, sizeofDiagReq)
			req[0], req[1] = family, q.proto
			binary.NativeEndian.PutUint32(req[4:], q.state)
			msgs, err := conn.Execute(netlink.Message{
				Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump},
				Data:   req,
			})
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) {
				continue // no IPv6, or no diag module for this protocol
			}
			if err != nil {
				return nil, fmt.Errorf("dumping %s sockets: %w", q.network, err)
			}
			for _, m := range msgs {
				h, ok := parseDiag(m.Data)
				if !ok || h.Addr.Port() != port || mine[h.Inode] {
					continue
				}
				h.Network = q.network
				out = append(out, h)
			}
		}
	}
	for i := range out {
		out[i].PID = pidOf(out[i].Inode)
		if out[i].PID != 0 {
			out[i].Command = strings.TrimSpace(commandOf(out[i].PID))
			out[i].Command = strings.Trim(out[i].Command, "()")
		}
	}
	return out, nil
}

// parseDiag reads one inet_diag_msg with its attributes.
func parseDiag(b []byte) (Holder, bool) {
	if len(b) < sizeofDiagMsg {
		return Holder{}, false
	}
	port := binary.BigEndian.Uint16(b[4:])
	var addr netip.Addr
	switch b[0] {
	case unix.AF_INET:
		addr = netip.AddrFrom4([4]byte(b[8:12]))
	case unix.AF_INET6:
		addr = netip.AddrFrom16([16]byte(b[8:24]))
	default:
		return Holder{}, false
	}
	h := Holder{
		Addr:  netip.AddrPortFrom(addr, port),
		UID:   binary.NativeEndian.Uint32(b[64:]),
		Inode: binary.NativeEndian.Uint32(b[68:]),
	}
	attrs, err := netlink.NewAttributeDecoder(b[sizeofDiagMsg:])
	if err != nil {
		return h, true
	}
	for attrs.Next() {
		if attrs.Type() == diagCgroupID && len(attrs.Bytes()) >= 8 {
			h.Cgroup = cgroupPath(binary.NativeEndian.Uint64(attrs.Bytes()))
		}
	}
	return h, true
}

// cgroupPath finds the control group with this id, which is the inode number of its folder in the cgroup2 file system.
func cgroupPath(id uint64) string {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(root, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		found := ""
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil //nolint:nilerr // a group that ended meanwhile is not the one
			}
			info, err := d.Info()
			if err != nil {
				return nil //nolint:nilerr // as above
			}
			if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Ino == id {
				found = "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
				return filepath.SkipAll
			}
			return nil
		})
		if found != "" {
			return found
		}
	}
	// From inside a container the group of another one is not visible: its number is all there is.
	return fmt.Sprintf("id %d", id)
}

// ownSockets lists the inodes of this process's sockets.
func ownSockets() map[uint32]bool {
	out := map[uint32]bool{}
	eachSocket(os.Getpid(), func(inode uint32) bool { out[inode] = true; return true })
	return out
}

// pidOf finds a process that has the socket open, 0 if none is visible.
func pidOf(inode uint32) int {
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		found := false
		eachSocket(pid, func(i uint32) bool { found = i == inode; return !found })
		if found {
			return pid
		}
	}
	return 0
}

// eachSocket calls yield with the inode of each socket of pid until it returns false.
func eachSocket(pid int, yield func(inode uint32) bool) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err != nil {
			continue
		}
		s, ok := strings.CutPrefix(to, "socket:[")
		if !ok {
			continue
		}
		if inode, err := strconv.ParseUint(strings.TrimSuffix(s, "]"), 10, 32); err == nil && !yield(uint32(inode)) {
			return
		}
	}
}

// commandOf is " (name)" for a visible process, empty otherwise.
func commandOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return " (" + strings.TrimSpace(string(b)) + ")"
}
