package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ownerTable is the name of the nftables table that lives as long as this process.
const ownerTable = "nodedns"

// tableFlagOwner is NFT_TABLE_F_OWNER (linux/netfilter/nf_tables.h, since Linux 5.12): the kernel lets nobody but the
// socket that made the table change it, and removes it when that socket closes, which it does with the process.
const tableFlagOwner = 2

// ownerRetry bounds the wait for the table of a predecessor that has just ended to go away.
const ownerRetry = 2 * time.Second

// owned is what an owner table holds.
type owned struct {
	fam          family
	served       []netip.Addr
	port, health uint16
	ttl          time.Duration
	tracked      bool
}

// ownerLease is a lease in an owner table. The NOTRACK rules are in the same table, so they go with the process.
type ownerLease struct {
	spec owned

	mu   sync.Mutex
	conn *nftables.Conn
	set  *nftables.Set
}

// newOwnerLease makes the table. It fails where the kernel has no owner tables or no nf_tables for the family.
func newOwnerLease(spec owned) (*ownerLease, error) {
	o := &ownerLease{spec: spec}
	deadline := time.Now().Add(ownerRetry)
	for {
		err := o.openLocked()
		// The table of a process that has just ended is removed a moment later.
		if (errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EPERM)) && time.Now().Before(deadline) {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("making the owner table %s (%s): %w", ownerTable, spec.fam, err)
		}
		return o, nil
	}
}

func (o *ownerLease) family() nftables.TableFamily {
	if o.spec.fam == v6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// openLocked makes table, sets and rules over a new socket.
func (o *ownerLease) openLocked() error {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return createOwnerTable(c, byte(o.family()))
	}))
	if err != nil {
		return err
	}
	if err := o.fillLocked(conn); err != nil {
		return errors.Join(err, conn.CloseLasting())
	}
	o.conn = conn
	return nil
}

// createOwnerTable sends the one message that the nftables library cannot: a new table with flags.
func createOwnerTable(c *netlink.Conn, family byte) error {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(ownerTable), 0)},
		{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, tableFlagOwner)},
	})
	if err != nil {
		return err
	}
	batch := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   []byte{0, 0, 0, unix.NFNL_SUBSYS_NFTABLES}, // nfgenmsg with the subsystem as resource
		}
	}
	newTable := netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE),
			Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl,
		},
		Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
	if _, err := c.SendMessages([]netlink.Message{batch(unix.NFNL_MSG_BATCH_BEGIN), newTable, batch(unix.NFNL_MSG_BATCH_END)}); err != nil {
		return err
	}
	_, err = c.Receive()
	return err
}

// fillLocked adds sets, chains and rules, in one transaction.
func (o *ownerLease) fillLocked(conn *nftables.Conn) error {
	table := &nftables.Table{Name: ownerTable, Family: o.family()}
	key := nftables.TypeIPAddr
	if o.spec.fam == v6 {
		key = nftables.TypeIP6Addr
	}
	set := &nftables.Set{Table: table, Name: "lease", KeyType: key, HasTimeout: true, Timeout: o.spec.ttl}
	if err := conn.AddSet(set, nil); err != nil {
		return err
	}
	served := &nftables.Set{Table: table, Name: "served", KeyType: key}
	var keys []nftables.SetElement
	for _, a := range o.spec.served {
		keys = append(keys, nftables.SetElement{Key: a.AsSlice()})
	}
	if err := conn.AddSet(served, keys); err != nil {
		return err
	}
	if o.spec.tracked {
		o.addTracked(conn, table, set, served)
	} else {
		o.addUntracked(conn, table, set, served)
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	o.set = set
	return nil
}

// addUntracked adds the rules that keep the cache's traffic out of connection tracking.
func (o *ownerLease) addUntracked(conn *nftables.Conn, table *nftables.Table, set, served *nftables.Set) {
	pre := o.addChain(conn, table, "prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	out := o.addChain(conn, table, "output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityRaw)
	rule := func(c *nftables.Chain, parts ...[]expr.Any) {
		conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: append(slices.Concat(parts...), &expr.Notrack{})})
	}
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		to := matchPort(proto, 2, o.spec.port)
		rule(out, matchMark(ProbeMark), o.matchAddr(true, served), to)
		rule(pre, o.matchAddr(true, set), to)
		rule(out, o.matchAddr(true, set), to)
		rule(out, o.matchAddr(false, served), matchPort(proto, 0, o.spec.port))
	}
	if o.spec.health != 0 {
		rule(out, o.matchAddr(true, served), matchPort(unix.IPPROTO_TCP, 2, o.spec.health))
		rule(out, o.matchAddr(false, served), matchPort(unix.IPPROTO_TCP, 0, o.spec.health))
	}
}

// addTracked adds the rules that leave the traffic tracked and yet to the cache: a translation to the address it has. A
// flow is translated once, by the first chain that wants to, so neither kube-proxy's chains nor the backstop see it again.
func (o *ownerLease) addTracked(conn *nftables.Conn, table *nftables.Table, set, served *nftables.Set) {
	// One before dstnat (-100), where iptables and kube-proxy are.
	first := new(*nftables.ChainPriorityNATDest - 1)
	pre := o.addChain(conn, table, "nat-prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, first)
	out := o.addChain(conn, table, "nat-output", nftables.ChainTypeNAT, nftables.ChainHookOutput, first)
	rule := func(c *nftables.Chain, parts ...[]expr.Any) {
		exprs := append(slices.Concat(parts...), o.loadAddr(true),
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(o.family()), RegAddrMin: 1})
		conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: exprs})
	}
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		to := matchPort(proto, 2, o.spec.port)
		rule(out, matchMark(ProbeMark), o.matchAddr(true, served), to)
		rule(pre, o.matchAddr(true, set), to)
		rule(out, o.matchAddr(true, set), to)
	}
}

func (o *ownerLease) addChain(conn *nftables.Conn, table *nftables.Table, name string, kind nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
	return conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: kind, Hooknum: hook, Priority: prio})
}

// matchAddr matches the destination, or the source, against a set.
func (o *ownerLease) matchAddr(dst bool, set *nftables.Set) []expr.Any {
	return []expr.Any{o.loadAddr(dst), &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}}
}

// loadAddr puts the destination, or the source, into register 1.
func (o *ownerLease) loadAddr(dst bool) expr.Any {
	// Offsets of the addresses in the IPv4 (RFC 791 section 3.1) and IPv6 header (RFC 8200 section 3).
	offset, size := uint32(12), uint32(4)
	if o.spec.fam == v6 {
		offset, size = 8, 16
	}
	if dst {
		offset += size
	}
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}

// matchPort matches the 16 bits at offset of the transport header: 0 is the source port, 2 the destination port.
func matchPort(proto byte, offset uint32, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

func matchMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(mark)},
	}
}

// Renew implements lease. The timeout of an element that is there cannot be changed in most kernels, so the element is
// replaced, within one transaction: no packet sees the set without it.
func (o *ownerLease) Renew(addrs []netip.Addr, ttl time.Duration) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn == nil {
		return errors.New("renewing the lease: the owner table is closed")
	}
	if err := o.commitLocked(addrs, ttl, true, true); !errors.Is(err, unix.ENOENT) {
		return wrapLease(err)
	}
	// Some element had run out. Elements that have not get their new time with the next renewal.
	return wrapLease(o.commitLocked(addrs, ttl, false, true))
}

func wrapLease(err error) error {
	if err != nil {
		return fmt.Errorf("renewing the lease in the owner table: %w", err)
	}
	return nil
}

func (o *ownerLease) commitLocked(addrs []netip.Addr, ttl time.Duration, del, add bool) error {
	for _, a := range addrs {
		if del {
			if err := o.conn.SetDeleteElements(o.set, []nftables.SetElement{{Key: a.AsSlice()}}); err != nil {
				return err
			}
		}
		if add {
			if err := o.conn.SetAddElements(o.set, []nftables.SetElement{{Key: a.AsSlice(), Timeout: ttl}}); err != nil {
				return err
			}
		}
	}
	return o.conn.Flush()
}

// Drop implements lease.
func (o *ownerLease) Drop(addrs []netip.Addr) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn == nil {
		return nil
	}
	var errs []error
	for _, a := range addrs {
		// One by one: of elements deleted together none goes if one has run out.
		if err := o.commitLocked([]netip.Addr{a}, 0, true, false); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("ending the lease of %s in the owner table: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

// Check implements lease. Nobody can take the table away, but it costs little to look.
func (o *ownerLease) Check() (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn == nil {
		return false, nil
	}
	tables, err := o.conn.ListTablesOfFamily(o.family())
	if err != nil {
		return false, fmt.Errorf("listing nftables tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == ownerTable {
			return false, nil
		}
	}
	_ = o.conn.CloseLasting()
	o.conn = nil
	if err := o.openLocked(); err != nil {
		return false, fmt.Errorf("making the owner table again: %w", err)
	}
	return true, nil
}

// nftInUse says whether the family has any nftables table.
func nftInUse(fam family) bool {
	family := nftables.TableFamilyIPv4
	if fam == v6 {
		family = nftables.TableFamilyIPv6
	}
	tables, err := (&nftables.Conn{}).ListTablesOfFamily(family)
	return err == nil && len(tables) > 0
}

// Close implements lease: the kernel removes the table.
func (o *ownerLease) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn == nil {
		return nil
	}
	conn := o.conn
	o.conn = nil
	return conn.CloseLasting()
}
