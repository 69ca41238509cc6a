package node

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ProbeMark is the firewall mark (SO_MARK) of the probe's sockets. Packets that carry it pass by the lease, so that the
// probe reaches this very process also while the node is out of service; without the mark it would be answered by
// cluster DNS through the backstop. The value keeps clear of the bits of kube-proxy (0x4000, 0x8000), of cilium
// (0x0f00) and of the usual CNI plugins.
const ProbeMark = 0x1035

// DefaultLink is the name of the link that carries the addresses, the one that upstream node-local-dns uses.
const DefaultLink = "nodelocaldns"

// Mode is the proxy mode of kube-proxy.
type Mode string

// The modes that kube-proxy reports at /proxyMode.
const (
	IPVS     Mode = "ipvs"
	IPTables Mode = "iptables"
	NFTables Mode = "nftables"
)

// ParseMode reads a mode as kube-proxy spells it.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(strings.ToLower(strings.TrimSpace(s))); m {
	case IPVS, IPTables, NFTables:
		return m, nil
	}
	return "", fmt.Errorf("proxy mode %q: want %s, %s or %s", s, IPVS, IPTables, NFTables)
}

// Flavour says through which kernel interface the iptables command works.
type Flavour string

// The flavours. AutoFlavour takes what kube-proxy or kubelet took on this node.
const (
	AutoFlavour Flavour = ""
	Legacy      Flavour = "legacy"
	NFT         Flavour = "nft"
)

// Leave says what TearDown removes.
type Leave string

// LeaveByMode removes what the proxy mode says: nothing that a Pod with the local address in its resolv.conf needs.
// LeaveAll removes everything, LeaveNothing only ends the lease.
const (
	LeaveByMode  Leave = ""
	LeaveAll     Leave = "all"
	LeaveNothing Leave = "none"
)

// Config is what the node room must know. The zero value of each field gives its default.
type Config struct {
	// Link is the name of the link that carries the addresses. Default: nodelocaldns.
	Link string
	// Local are the addresses that Pods have in their resolv.conf. At least one is needed; there is no default here.
	Local []netip.Addr
	// ClusterIP are the ClusterIPs of the cluster DNS Service, at most one per family. With IPVS they are the target of
	// the backstop, with the other modes the cache serves them too. Empty: no backstop, and only Local is served.
	ClusterIP []netip.Addr
	// Mode is kube-proxy's mode (DetectMode finds it). There is no default: a guess could steal traffic.
	Mode Mode
	// ModeAt are kube-proxy's metrics addresses (host:port), asked again while running so that a changed mode is
	// noticed. Empty: the mode never changes.
	ModeAt []string
	// Port is the DNS port. Default: 53.
	Port uint16
	// HealthPort is the TCP port of /health on the local addresses, let through like DNS. Zero: no rules for it.
	HealthPort uint16
	// SkipLink leaves link, addresses and routes to somebody else.
	SkipLink bool
	// SkipRules installs no rules at all: DNS is served where the addresses are local, with no guard and no backstop.
	SkipRules bool
	// Tracked keeps DNS traffic in connection tracking, for networks that need it there (-notrack=false).
	Tracked bool
	// Guard is the best guard level to try. Zero: the best the kernel has.
	Guard Level
	// Flavour forces an iptables flavour. Zero: as kube-proxy chose.
	Flavour Flavour
	// Lease is how long the node stays in service after the last proof that the cache answers. Default: 3 s; whole
	// seconds, since the kernel's sets count in seconds.
	Lease time.Duration
	// Renew is the time between proofs. Default: a third of Lease.
	Renew time.Duration
	// Sync is the longest time between two full checks of link and rules. Default: 60 s. Changes that the kernel
	// announces are looked at at once, whatever Sync says.
	Sync time.Duration
	// LockWait is how long one iptables call waits for the xtables lock before it is tried again. Default: 5 s.
	LockWait time.Duration
	// Patience is how long Arm goes on trying before it leaves the rest to the keeper. Default: 30 s.
	Patience time.Duration
	// Leave says what TearDown removes. Default: what the mode says.
	Leave Leave
}

// withDefaults returns c with its zero values filled in.
func (c Config) withDefaults() Config {
	if c.Link == "" {
		c.Link = DefaultLink
	}
	if c.Port == 0 {
		c.Port = 53
	}
	if c.Guard == 0 {
		c.Guard = LevelOwner
	}
	if c.Lease == 0 {
		c.Lease = 3 * time.Second
	}
	if c.Renew == 0 {
		c.Renew = c.Lease / 3
	}
	if c.Sync == 0 {
		c.Sync = time.Minute
	}
	if c.LockWait == 0 {
		c.LockWait = 5 * time.Second
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	return c
}

// Validate lists every problem of c, joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	// IFNAMSIZ is 16 with the closing zero; the set is named after the link.
	if !regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`).MatchString(c.Link) {
		bad("link name %q: want 1 to 15 letters, digits, dots, dashes or underscores", c.Link)
	}
	if len(c.Local) == 0 {
		bad("no local address: at least one is needed, for example 169.254.25.10")
	}
	for _, a := range c.Local {
		if err := checkAddr(a); err != nil {
			errs = append(errs, fmt.Errorf("local address: %w", err))
		}
	}
	seen := map[bool]netip.Addr{}
	for _, a := range c.ClusterIP {
		if err := checkAddr(a); err != nil {
			errs = append(errs, fmt.Errorf("cluster DNS address: %w", err))
			continue
		}
		if other, dup := seen[a.Is4()]; dup && other != a {
			bad("cluster DNS addresses %s and %s are of one family: want at most one each", other, a)
		}
		seen[a.Is4()] = a
		if c.Mode == IPVS && slices.Contains(c.Local, a) && len(c.Local) == 1 {
			bad("local address %s is the cluster DNS ClusterIP: with kube-proxy in IPVS mode that address belongs to kube-ipvs0; use an address of its own, such as 169.254.25.10", a)
		}
	}
	if _, err := ParseMode(string(c.Mode)); err != nil {
		errs = append(errs, err)
	}
	if !slices.Contains([]Flavour{AutoFlavour, Legacy, NFT}, c.Flavour) {
		bad("iptables flavour %q: want %q or %q, or nothing for automatic", c.Flavour, Legacy, NFT)
	}
	if !slices.Contains([]Leave{LeaveByMode, LeaveAll, LeaveNothing}, c.Leave) {
		bad("teardown %q: want %q or %q, or nothing for what the proxy mode says", c.Leave, LeaveAll, LeaveNothing)
	}
	if c.Lease < time.Second || c.Lease%time.Second != 0 {
		bad("lease %s: want whole seconds, at least 1s", c.Lease)
	}
	if c.Renew <= 0 || c.Renew >= c.Lease {
		bad("lease renewal each %s: want more than 0 and less than the lease of %s", c.Renew, c.Lease)
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"sync interval", c.Sync}, {"xtables lock wait", c.LockWait}, {"patience", c.Patience}} {
		if d.v < 0 {
			bad("%s %s is negative", d.name, d.v)
		}
	}
	return errors.Join(errs...)
}

// ParseAddrs reads a comma-separated list of addresses: empty elements and spaces are ignored, duplicates merged. It is
// an error if no address is left. The result keeps the order.
func ParseAddrs(list string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	var errs []error
	for s := range strings.SplitSeq(list, ",") {
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		if strings.Contains(s, "__PILLAR__") {
			errs = append(errs, fmt.Errorf("address %q: a placeholder that was never filled in", s))
			continue
		}
		if p, err := netip.ParsePrefix(s); err == nil {
			errs = append(errs, fmt.Errorf("address %q: want the address alone, %s", s, p.Addr()))
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("address %q: want an IPv4 or IPv6 address, not a name", s))
			continue
		}
		a = a.Unmap()
		if err := checkAddr(a); err != nil {
			errs = append(errs, err)
			continue
		}
		if !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	if len(errs) == 0 && len(addrs) == 0 {
		return nil, fmt.Errorf("no address in %q", list)
	}
	return addrs, errors.Join(errs...)
}

// checkAddr says why a cannot be an address of ours.
func checkAddr(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return errors.New("an empty address")
	case a.Is4In6():
		return fmt.Errorf("address %s: want it as %s", a, a.Unmap())
	case a.IsUnspecified():
		return fmt.Errorf("address %s stands for every address: want one address of our own", a)
	case a.IsMulticast():
		return fmt.Errorf("address %s is a multicast address", a)
	case a.IsLoopback():
		return fmt.Errorf("address %s is a loopback address: a Pod would reach only itself", a)
	case a.Is6() && a.IsLinkLocalUnicast():
		return fmt.Errorf("address %s is link-local and means something else on every link: want a unique local one, such as fd00::25:10", a)
	case a.Zone() != "":
		return fmt.Errorf("address %s: a zone has no meaning here", a)
	}
	return nil
}
