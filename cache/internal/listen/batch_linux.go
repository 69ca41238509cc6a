package listen

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batchSize is the number of packets one system call moves at most.
	batchSize = 32

	// controlSize holds one IP_PKTINFO or IPV6_PKTINFO message.
	controlSize = 40
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// batch is what the kernel reads from and writes to, laid out once. Packet i arrives in
// in[i], with its sender in names[i]; a reply goes out from wherever it lies.
type batch struct {
	recv    [batchSize]mmsghdr
	recvIov [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrInet6
	control [batchSize][controlSize]byte
	in      [batchSize][udpQuery]byte

	send    [batchSize]mmsghdr
	sendIov [batchSize]unix.Iovec
	out     [batchSize][udpReply]byte
	sends   int
}

func newBatch(pktinfo bool) *batch {
	b := new(batch)
	for i := range batchSize {
		b.recvIov[i].Base = &b.in[i][0]
		b.recvIov[i].SetLen(udpQuery)
		r := &b.recv[i].hdr
		r.Iov = &b.recvIov[i]
		r.SetIovlen(1)
		r.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		r.Namelen = unix.SizeofSockaddrInet6
		if pktinfo {
			r.Control = &b.control[i][0]
			r.SetControllen(controlSize)
		}
		b.sendIov[i].SetLen(0)
		s := &b.send[i].hdr
		s.Iov = &b.sendIov[i]
		s.SetIovlen(1)
	}
	return b
}

// receive fills the batch without blocking and returns the number of packets.
//
// A raw system call, because the runtime need not know of one that cannot block: telling
// it costs as much as several packets, and lets its monitor take the processor away.
func (b *batch) receive(fd uintptr) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.recv[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// packet returns packet i and tells whether it was too large for its buffer.
func (b *batch) packet(i int) (msg []byte, cut bool) {
	return b.in[i][:min(b.recv[i].len, udpQuery)], b.recv[i].hdr.Flags&unix.MSG_TRUNC != 0
}

// reply puts the reply to packet i in line for flush.
func (b *batch) reply(i int, msg []byte) {
	k := b.sends
	b.sends++
	b.sendIov[k].Base = unsafe.SliceData(msg)
	b.sendIov[k].SetLen(len(msg))
	r, s := &b.recv[i].hdr, &b.send[k].hdr
	s.Name, s.Namelen = r.Name, r.Namelen
	s.Control, s.Controllen = r.Control, r.Controllen
	if r.Control != nil {
		turnAround(b.control[i][:r.Controllen])
	}
}

// flush sends the replies in line and returns how many the kernel refused.
func (b *batch) flush(fd uintptr) (refused int) {
	refused = sendBatch(fd, b.send[:b.sends])
	b.sends = 0
	return refused
}

// recycle makes the first n receive slots ready again: the kernel has written lengths
// over the room they offered.
func (b *batch) recycle(n int) {
	for i := range n {
		r := &b.recv[i].hdr
		r.Namelen = unix.SizeofSockaddrInet6
		if r.Control != nil {
			r.SetControllen(controlSize)
		}
	}
}

// client returns the sender's address as a handler sees it: IPv4 as IPv4 also on a
// socket for both families, and without the zone, whose text would have to be allocated;
// the reply uses the kernel's own form.
func client(name *unix.RawSockaddrInet6) netip.AddrPort {
	if name.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), bigEndian(v4.Port))
	}
	return netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), bigEndian(name.Port))
}

// bigEndian reads a port that lies in memory in network order.
func bigEndian(port uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], port)
	return binary.BigEndian.Uint16(b[:])
}

// wantPktinfo asks the kernel for the address each packet was sent to, which only a
// socket bound to every address needs: any other one replies from the one it has.
func wantPktinfo(fd int, family6 bool) error {
	if family6 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
}

// turnAround changes the control message that came with a query into the one its reply
// needs: from the address asked, but out of whatever interface the route says, unless
// the address has a meaning on one link only.
func turnAround(control []byte) {
	if len(control) < unix.SizeofCmsghdr {
		return
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	data := control[unix.CmsgLen(0):]
	switch {
	case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		clear(data[:4]) // ipi_ifindex; the source is ipi_spec_dst
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		if linkLocal := data[0] == 0xfe && data[1]&0xc0 == 0x80; !linkLocal {
			clear(data[16:20]) // ipi6_ifindex
		}
	}
}
