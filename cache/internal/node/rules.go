package node

import (
	"fmt"
	"hash/crc32"
	"net/netip"
	"strconv"
	"strings"
)

// commentPrefix opens the comment of every rule of ours; whatever carries it is ours, nothing else is.
const commentPrefix = "nodedns: "

// family is an IP family. Each has its own rules, set and backstop, so that trouble of one leaves the other alone.
type family uint8

const (
	v4 family = 4
	v6 family = 6
)

func families() []family { return []family{v4, v6} }

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return v4
	}
	return v6
}

// of keeps the addresses of the family.
func (f family) of(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if familyOf(a) == f {
			out = append(out, a)
		}
	}
	return out
}

// setName is the name of the family's lease set.
func (f family) setName(link string) string {
	if f == v6 {
		return link + "6"
	}
	return link
}

func (f family) String() string { return "IPv" + strconv.Itoa(int(f)) }

// rule is one iptables rule, without its comment.
type rule struct {
	table, chain string
	spec         []string
	purpose      string
}

// comment tells people what the rule is for, and us which rule it is: the sum changes with the rule, so a rule of ours
// whose comment is wanted is the wanted rule, however this or that iptables version prints the rest.
func (r rule) comment() string {
	sum := crc32.ChecksumIEEE([]byte(r.table + " " + r.chain + " " + strings.Join(r.spec, " ")))
	return fmt.Sprintf("%s%s (%08x)", commentPrefix, r.purpose, sum)
}

// args is the rule as the iptables command wants it. The comment comes before the jump, as iptables-save prints it.
func (r rule) args() []string {
	jump := len(r.spec)
	for i, s := range r.spec {
		if s == "-j" {
			jump = i
		}
	}
	out := append([]string{}, r.spec[:jump]...)
	out = append(out, "-m", "comment", "--comment", r.comment())
	return append(out, r.spec[jump:]...)
}

// tableChains are the chains of a table in which there can be rules of ours.
type tableChains struct {
	table  string
	chains []string
	step   step // under which trouble with it is reported
}

// ourTables are in the order in which they are filled: what lets traffic through and answers in our place comes before
// what takes traffic away. They are cleared in the opposite order.
func ourTables() []tableChains {
	return []tableChains{
		{"filter", []string{"INPUT", "OUTPUT"}, stepFilter},
		{"nat", []string{"PREROUTING", "OUTPUT", "POSTROUTING"}, stepNAT},
		{"raw", []string{"PREROUTING", "OUTPUT"}, stepRaw},
	}
}

// want is what the rules of one family are made from.
type want struct {
	set          string       // name of the lease set
	served       []netip.Addr // addresses the cache answers on
	kept         []netip.Addr // addresses Pods have in their resolv.conf: these have a backstop
	cluster      []netip.Addr // ClusterIPs, which the cache serves too outside IPVS
	mode         Mode
	targets      []netip.AddrPort
	level        Level
	tracked      bool // no NOTRACK: the guarded ACCEPT comes before the backstop
	notrack      []string
	port, health uint16
	steer        bool // at LevelPlain the rules themselves are the switch
}

// rules lists the family's rules, each chain's in their order.
func (w want) rules() []rule {
	var out []rule
	add := func(table, chain, purpose string, spec ...string) {
		out = append(out, rule{table: table, chain: chain, purpose: purpose, spec: spec})
	}
	w.filter(add)
	w.backstop(add)
	if !w.tracked {
		w.raw(add)
	}
	return out
}

type adder func(table, chain, purpose string, spec ...string)

func protocols() []string { return []string{"udp", "tcp"} }

func (w want) dns() string { return strconv.Itoa(int(w.port)) }

// guard is the match that is true while the cache answers on the packet's destination. Only PREROUTING can look the
// socket up; packets of the host's own clients have the lease alone.
func (w want) guard(chain string) []string {
	switch {
	case w.level >= LevelSocket && chain == "PREROUTING":
		return []string{"-m", "set", "--match-set", w.set, "dst", "-m", "socket"}
	case w.level >= LevelLease:
		return []string{"-m", "set", "--match-set", w.set, "dst"}
	}
	return nil
}

// raw keeps the traffic out of connection tracking, and so out of nat: of kube-proxy's and of our backstop. At
// LevelOwner the owner table does this.
func (w want) raw(add adder) {
	if w.level == LevelOwner {
		return
	}
	for _, a := range w.served {
		ip := cidr(a)
		steer := func(chain, purpose string) {
			if w.level == LevelPlain && !w.steer {
				return
			}
			for _, p := range protocols() {
				spec := append([]string{"-d", ip, "-p", p, "-m", p, "--dport", w.dns()}, w.guard(chain)...)
				add("raw", chain, purpose, append(spec, w.notrack...)...)
			}
		}
		// The probe's packets pass by the lease, and come before everything else.
		for _, p := range protocols() {
			spec := []string{"-d", ip, "-p", p, "-m", p, "--dport", w.dns(), "-m", "mark", "--mark", fmt.Sprintf("%#x", ProbeMark)}
			add("raw", "OUTPUT", "the probe", append(spec, w.notrack...)...)
		}
		steer("PREROUTING", "questions of Pods")
		steer("OUTPUT", "questions of the host")
		for _, p := range protocols() {
			spec := []string{"-s", ip, "-p", p, "-m", p, "--sport", w.dns()}
			add("raw", "OUTPUT", "answers", append(spec, w.notrack...)...)
		}
		if w.health != 0 {
			health := strconv.Itoa(int(w.health))
			add("raw", "OUTPUT", "health", append([]string{"-d", ip, "-p", "tcp", "-m", "tcp", "--dport", health}, w.notrack...)...)
			add("raw", "OUTPUT", "health", append([]string{"-s", ip, "-p", "tcp", "-m", "tcp", "--sport", health}, w.notrack...)...)
		}
	}
}

// filter lets the traffic through firewalls: untracked packets are not ESTABLISHED for them, and on the backstop's path
// INPUT and OUTPUT see another destination than the client asked.
func (w want) filter(add adder) {
	for _, a := range w.served {
		ip := cidr(a)
		for _, p := range protocols() {
			for _, chain := range []string{"INPUT", "OUTPUT"} {
				add("filter", chain, "questions", "-d", ip, "-p", p, "-m", p, "--dport", w.dns(), "-j", "ACCEPT")
				add("filter", chain, "answers", "-s", ip, "-p", p, "-m", p, "--sport", w.dns(), "-j", "ACCEPT")
			}
		}
		if w.health != 0 {
			health := strconv.Itoa(int(w.health))
			for _, chain := range []string{"INPUT", "OUTPUT"} {
				add("filter", chain, "health", "-d", ip, "-p", "tcp", "-m", "tcp", "--dport", health, "-j", "ACCEPT")
				add("filter", chain, "health", "-s", ip, "-p", "tcp", "-m", "tcp", "--sport", health, "-j", "ACCEPT")
			}
		}
	}
	if len(w.targets) == 0 {
		return
	}
	for _, a := range w.kept {
		for _, p := range protocols() {
			for _, chain := range []string{"INPUT", "OUTPUT"} {
				spec := append([]string{"-p", p}, w.origin(a)...)
				add("filter", chain, "backstop", append(spec, "-j", "ACCEPT")...)
			}
		}
	}
}

// origin matches packets of flows that a client opened to a.
func (w want) origin(a netip.Addr) []string {
	return []string{"-m", "conntrack", "--ctorigdst", a.String(), "--ctorigdstport", w.dns()}
}

// backstop sends tracked questions, which are those the cache does not get, to cluster DNS.
func (w want) backstop(add adder) {
	if w.tracked && w.level != LevelOwner && (w.level != LevelPlain || w.steer) {
		for _, a := range w.served {
			for _, p := range protocols() {
				match := []string{"-d", cidr(a), "-p", p, "-m", p, "--dport", w.dns()}
				probe := append(append([]string{}, match...), "-m", "mark", "--mark", fmt.Sprintf("%#x", ProbeMark), "-j", "ACCEPT")
				add("nat", "OUTPUT", "the probe", probe...)
				for _, chain := range []string{"PREROUTING", "OUTPUT"} {
					spec := append(append([]string{}, match...), w.guard(chain)...)
					add("nat", chain, "questions to the cache", append(spec, "-j", "ACCEPT")...)
				}
			}
		}
	}
	if len(w.targets) > 0 {
		for _, a := range w.kept {
			for _, p := range protocols() {
				for _, chain := range []string{"PREROUTING", "OUTPUT"} {
					for i, t := range w.targets {
						spec := []string{"-d", cidr(a), "-p", p, "-m", p, "--dport", w.dns()}
						if left := len(w.targets) - i; left > 1 {
							spec = append(spec, "-m", "statistic", "--mode", "random", "--probability", fmt.Sprintf("%.5f", 1/float64(left)))
						}
						add("nat", chain, "backstop", append(spec, "-j", "DNAT", "--to-destination", t.String())...)
					}
				}
				masquerade(add, a, append([]string{"-p", p}, w.origin(a)...))
			}
		}
	}
	// While a ClusterIP is local, clients on the host have a local address as their source, for all its ports (sourceOf), or
	// the ClusterIP itself. Sockets keep what they have, so these rules stay when the cache leaves or the mode changes.
	for _, a := range w.cluster {
		match := []string{"-m", "conntrack", "--ctorigdst", a.String()}
		if source := sourceOf(a, w.kept); source.IsValid() {
			masquerade(add, source, match)
		}
		if w.mode != IPVS { // there the ClusterIP is kube-proxy's, which sees to it
			masquerade(add, a, match)
		}
	}
}

// masquerade gives questions of host-network clients, whose source is an address that only this node knows, one that the
// answer finds back to. It matches these flows and no others.
func masquerade(add adder, source netip.Addr, match []string) {
	spec := append([]string{"-s", cidr(source), "!", "-o", "lo"}, match...)
	add("nat", "POSTROUTING", "backstop of the host", append(spec, "-j", "MASQUERADE")...)
}

// cidr is a as iptables prints it.
func cidr(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }
