package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
)

// runUpstream is the cluster DNS of the bench: names with a label "nx…" or "com"
// do not exist (SOA, TTL and MINIMUM 30), every other name has one A record, TTL
// 30. The address of "count." is the number of questions seen before. It answers
// over UDP and over pipelined TCP and costs as little as it can, for it shares a
// core with the load.
func runUpstream(addr string) error {
	pc, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	var u upstream
	errs := make(chan error, 2)
	go func() { errs <- u.serveUDP(pc) }()
	go func() { errs <- u.serveTCP(ln) }()
	return <-errs
}

type upstream struct{ asked atomic.Uint32 }

func (u *upstream) serveUDP(pc net.PacketConn) error {
	buf := make([]byte, 4096)
	for {
		n, from, err := pc.ReadFrom(buf[:2048])
		if err != nil {
			return err
		}
		if reply := u.answer(buf, n); reply != nil {
			if _, err := pc.WriteTo(reply, from); err != nil {
				return err
			}
		}
	}
}

func (u *upstream) serveTCP(ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() { _ = u.serveConn(c) }()
	}
}

// serveConn writes when the reader would block, so that a burst costs one write.
func (u *upstream) serveConn(c net.Conn) error {
	defer c.Close()
	r, w := bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)
	var head [2]byte
	buf := make([]byte, 4096)
	for {
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint16(head[:]))
		if n > 2048 {
			return errors.New("query too long")
		}
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return err
		}
		reply := u.answer(buf, n)
		if reply == nil {
			continue
		}
		binary.BigEndian.PutUint16(head[:], uint16(len(reply)))
		_, _ = w.Write(head[:])
		if _, err := w.Write(reply); err != nil {
			return err
		}
	}
}

// answer turns the query buf[:n] into its reply, in place; nil if it is none.
func (u *upstream) answer(buf []byte, n int) []byte {
	if n < 19 {
		return nil
	}
	i, missing := 12, false
	var zone, last int // offsets of the last two labels: the zone's name
	for i < n && buf[i] != 0 {
		label := string(buf[i+1 : min(n, i+1+int(buf[i]))])
		missing = missing || label == "com" || strings.HasPrefix(label, "nx")
		zone, last = last, i
		i += 1 + int(buf[i])
	}
	i += 5
	if i > n {
		return nil
	}
	rest := buf[:i]
	rest[2], rest[3] = rest[2]&0x01|0x84, 0x80
	clear(rest[6:12])
	if missing {
		u.asked.Add(1)
		rest[3] |= 3
		rest[9] = 1
		return append(rest,
			0xc0, byte(max(zone, 12)), 0, 6, 0, 1, 0, 0, 0, 30, 0, 22, 0, 0,
			0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 30)
	}
	rest[7] = 1
	if string(buf[12:19]) == "\x05count\x00" {
		return binary.BigEndian.AppendUint32(append(rest, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), u.asked.Load())
	}
	u.asked.Add(1)
	return append(rest, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 10, 96, 7, 7)
}
