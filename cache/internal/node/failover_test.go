package node

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nodedns/nodedns/e2e/load"
)

// fault is something that happens to the cache or the node while clients ask.
type fault struct {
	name string
	do   func(t *testing.T, r *rig)
	// pod and host are how many questions may be lost, of UDP clients; tcp is that of TCP clients in a Pod.
	pod, host, tcp int
	// outage bounds the time without service, where questions may be lost at all.
	outage time.Duration
}

// lease is the one of the rigs: the default.
const rigLease = 3 * time.Second

// faults are those of the failover promise that a single node can show. events is how often each fault is repeated.
func faults(guard Level) []fault {
	const events = 2
	hostKilled := events
	if guard < LevelOwner {
		// The host's own clients know of the cache's end by the lease alone.
		hostKilled = events * int(rigLease/time.Second+1) * rates()["udp"]
	}
	restart := func(sig syscall.Signal) func(t *testing.T, r *rig) {
		return func(t *testing.T, r *rig) {
			for range events {
				time.Sleep(500 * time.Millisecond)
				r.end(t, sig)
				if sig == syscall.SIGKILL {
					time.Sleep(time.Second) // as long as it takes until somebody starts it again
				}
				r.start(t)
			}
		}
	}
	podKilled := 2 * events
	if guard < LevelSocket {
		podKilled = hostKilled
	}
	hang := int((rigLease + time.Second).Seconds())
	iptables := func(r *rig, args string) string { return "iptables-" + string(r.p.flavour) + args }
	return []fault{
		{name: "nothing", do: func(*testing.T, *rig) { time.Sleep(3 * time.Second) }},
		{name: "SIGKILL", do: restart(syscall.SIGKILL), pod: podKilled, host: hostKilled, tcp: podKilled, outage: rigLease + 200*time.Millisecond},
		{name: "restart", do: restart(syscall.SIGTERM)},
		{
			name: "hang", pod: hang * rates()["udp"], host: hang * rates()["udp"], tcp: hang * rates()["tcp"],
			outage: rigLease + 200*time.Millisecond,
			do: func(t *testing.T, r *rig) {
				if err := r.cache.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				time.Sleep(rigLease + 2*time.Second)
				if err := r.cache.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
			},
		},
		{
			name: "killed while starting", pod: 2 * 6, host: hostKilled * 3, tcp: 2 * 6, outage: rigLease + 200*time.Millisecond,
			do: func(t *testing.T, r *rig) {
				r.kill(t)
				for i := range 5 {
					r.launch(t)
					// Steps of a start are milliseconds apart, in User-Mode Linux hundreds of them.
					time.Sleep(time.Duration(i*i) * map[bool]time.Duration{true: 100 * time.Millisecond, false: 5 * time.Millisecond}[r.p.uml])
					r.kill(t)
				}
				r.start(t)
			},
		},
		{
			name: "two at once", do: func(t *testing.T, r *rig) {
				first, done := r.cache, r.done
				r.launch(t)
				r.within(10*time.Second, "waiting", func() bool { return bytes.Contains(r.log(t), []byte("waiting for another cache")) })
				if err := first.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Errorf("the first cache ended with %v", err)
				}
				r.inService(t)
			},
		},
		{name: "link", do: func(t *testing.T, r *rig) {
			for _, f := range []string{"ip link del nodelocaldns", "ip link set nodelocaldns down", "ip addr del 169.254.25.10/32 dev nodelocaldns"} {
				sh(t, f)
				r.within(time.Second, "up and with its address after "+f, func() bool {
					l, err := r.p.host().Link(DefaultLink)
					return err == nil && l.Up && slices.Contains(l.Addrs, addrs("169.254.25.10")[0])
				})
			}
		}},
		{name: "flush", do: func(t *testing.T, r *rig) {
			for _, tc := range ourTables() {
				tab, _, err := r.p.host().Tables(v4, r.p.flavour, time.Second)
				if err != nil {
					t.Fatal(err)
				}
				count := func() (n int) {
					for _, chain := range tc.chains {
						n += len(ours(t, tab, chainKey{tc.table, chain}))
					}
					return n
				}
				before := count()
				if before == 0 {
					continue // at LevelOwner the raw table is not used
				}
				// As a firewall reload does it: the table loses our rules in one go. kube-proxy's rules stay, or its
				// repairs would be measured too.
				sh(t, iptables(r, "-save -t "+tc.table)+" | grep -v nodedns: | "+iptables(r, "-restore"))
				// Two seconds is the promise. Looking takes a command too, and commands are slow in User-Mode Linux.
				limit := 2500 * time.Millisecond
				if r.p.uml {
					limit = 10 * time.Second
				}
				r.within(limit, "as before after flushing "+tc.table, func() bool { return count() == before })
			}
		}},
	}
}

// within is the function of that name for faults: what came late counts only if the machine was not in the way.
func (r *rig) within(d time.Duration, what string, ok func() bool) {
	for end := time.Now().Add(d); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			r.late = append(r.late, "not "+what+" within "+d.String())
			return
		}
	}
}

// within waits until ok holds, at most d.
func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("not %s within %s", what, d)
			return
		}
	}
}

// TestKernelFailover makes faults happen to a running cache while clients ask open-loop, each question from a new
// socket, and counts the lost ones beyond those of the same load on the plain ClusterIP.
func TestKernelFailover(t *testing.T) {
	inKernelWithCache(t, func(t *testing.T, p place) {
		modes := []Mode{IPTables}
		guard := LevelSocket
		switch {
		case p.uml:
			modes = []Mode{IPVS}
		case p.flavour == NFT:
			modes, guard = []Mode{NFTables}, LevelOwner
		}
		for _, mode := range modes {
			r := newRig(t, p, mode, guard)
			report(t, mode, "no cache yet", r.during(t, "10.96.0.10:53", func() { time.Sleep(time.Second) }))
			r.start(t)
			for _, f := range faults(guard) {
				if f.name == "link" && !p.uml {
					continue // the host's kernel may have no dummy links; the address lives on its local route alone
				}
				t.Run(f.name, func(t *testing.T) {
					r.fault(t, f)
					if f.name == "nothing" {
						untracked(t)
					}
				})
			}
		}
	})
}

// TestKernelSurroundings does the same, with fewer faults, where the surroundings are special.
func TestKernelSurroundings(t *testing.T) {
	inKernelWithCache(t, func(t *testing.T, p place) {
		mode, guard := IPTables, LevelSocket
		if p.uml {
			mode = IPVS
		} else if p.flavour == NFT {
			mode, guard = NFTables, LevelOwner
		}
		ipt := "iptables-" + string(p.flavour)
		r := newRig(t, p, mode, guard)
		few := func(t *testing.T) {
			for _, f := range faults(r.guard) {
				if f.name == "SIGKILL" || f.name == "restart" && !p.uml {
					t.Run(f.name, func(t *testing.T) { r.fault(t, f) })
				}
			}
		}
		t.Run("default-drop firewall", func(t *testing.T) {
			sh(t, ipt+" -A INPUT -m conntrack --ctstate INVALID -j DROP; "+ipt+" -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; "+ipt+" -P INPUT DROP; "+
				ipt+" -A INPUT -m conntrack --ctorigdst 10.96.0.10 -j ACCEPT # for the baseline: with IPVS, INPUT sees the ClusterIP")
			r.start(t)
			few(t)
			sh(t, ipt+" -P INPUT ACCEPT; "+ipt+" -D INPUT -m conntrack --ctstate INVALID -j DROP")
			r.end(t, syscall.SIGTERM)
		})
		t.Run("tracked", func(t *testing.T) {
			r.flags = []string{"-notrack=false"}
			r.start(t)
			if strings.Contains(dump(t, p.host(), p.flavour), "raw -A") {
				t.Error("something keeps traffic out of connection tracking")
			}
			few(t)
			r.end(t, syscall.SIGTERM)
			r.flags = nil
		})
		if !p.uml {
			for _, level := range []Level{LevelLease, LevelPlain} {
				t.Run("guard "+level.String(), func(t *testing.T) {
					r.guard = level
					r.start(t)
					few(t)
					r.end(t, syscall.SIGTERM)
				})
			}
			return
		}
		t.Run("IPv6", func(t *testing.T) {
			sh(t, topology6+proxy6)
			r.flags = []string{"-localip=169.254.25.10,fd00::25:10", "-cluster-dns=10.96.0.10,fd00:96::a"}
			r.to = "[fd00::25:10]:53"
			r.start(t)
			few(t)
		})
	})
}

// disturbed says whether the machine got in the way of the measurement.
func disturbed(got map[string]load.Result) bool {
	for _, res := range got {
		if float64(res.Queries) < 0.7*float64(res.Rate)*res.Seconds {
			return true
		}
	}
	return got[baseline].Failed > 0
}

// untracked checks that questions to the local address leave no trace in connection tracking (N07).
func untracked(t *testing.T) {
	t.Helper()
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if f.Forward.DstIP.String() == "169.254.25.10" && f.Forward.DstPort == 53 {
			t.Errorf("tracked: %s", f)
		}
	}
	if len(flows) == 0 {
		t.Error("nothing at all is tracked, not even the questions to cluster DNS")
	}
}

// baseline is the same load on a ClusterIP that no cache serves, at the same time: what it loses the machine loses.
const baseline = "plain udp"

// plain is such a ClusterIP.
func (r *rig) plain() string {
	if r.mode == IPVS {
		return "10.96.0.10:53"
	}
	return "10.96.0.11:53"
}

// target is what clients ask: what the webhook writes into resolv.conf, or what is there anyway.
func (r *rig) target() string {
	if r.to != "" {
		return r.to
	}
	if r.mode == IPVS {
		return "169.254.25.10:53"
	}
	return "10.96.0.10:53"
}

// during runs do while clients ask server, and gives what became of each client's questions.
func (r *rig) during(t *testing.T, server string, do func()) map[string]load.Result {
	t.Helper()
	clients := []*client{r.ask(t, "pod", "udp", server), r.ask(t, "", "udp", server), r.ask(t, "pod", "tcp", server)}
	if r.cache != nil {
		plain := r.ask(t, "pod", "udp", r.plain())
		plain.name = baseline
		clients = append(clients, plain)
	}
	if server == "10.96.0.10:53" && r.cache != nil {
		// Besides, a Pod that got the local address when the cluster's kube-proxy was in IPVS mode.
		injected := r.ask(t, "pod", "udp", "169.254.25.10:53")
		injected.name = "injected udp"
		clients = append(clients, injected)
	}
	time.Sleep(time.Second)
	do()
	time.Sleep(500 * time.Millisecond)
	out := map[string]load.Result{}
	for _, c := range clients {
		out[c.name] = c.result(t)
	}
	return out
}

// fault makes a fault happen and checks what was lost. It is tried again while the machine itself is in the way: then the
// baseline loses questions too, or clients do not get to ask as often as they should.
func (r *rig) fault(t *testing.T, f fault) {
	var got map[string]load.Result
	for range 3 {
		r.late, r.dying = nil, 0
		got = r.during(t, r.target(), func() { f.do(t, r) })
		report(t, r.mode, f.name, got)
		if t.Failed() || !disturbed(got) {
			break
		}
		t.Log("the machine was disturbed")
	}
	for _, late := range r.late {
		t.Error(late)
	}
	// Until the kernel has taken a killed process apart its sockets are there, and take questions with them. That is
	// milliseconds, and many of them in User-Mode Linux.
	t.Logf("%s: processes took %s to die", f.name, r.dying)
	for name, most := range map[string]int{"pod udp": f.pod, "host udp": f.host, "pod tcp": f.tcp, "injected udp": f.pod} {
		res, asked := got[name]
		if !asked {
			continue
		}
		most += int(r.dying.Seconds() * float64(rates()[name[len(name)-3:]]))
		base := got[baseline]
		beyond := res.Failed - int(float64(base.Failed)/float64(max(base.Queries, 1))*float64(res.Queries)+0.5)
		if beyond > most {
			t.Errorf("%s: %d of %d questions lost beyond the baseline, want at most %d: %v", name, beyond, res.Queries, most, res.Errors)
		}
		if limit := float64(f.outage.Milliseconds()) + base.OutageMS + 2*1000/float64(rates()[name[len(name)-3:]]); f.outage > 0 && res.OutageMS > limit {
			t.Errorf("%s: outage of %.0f ms, want at most %.0f", name, res.OutageMS, limit)
		}
		if res.Queries == 0 || res.By[load.ByCache] == 0 {
			t.Errorf("%s: the cache answered none of %d questions", name, res.Queries)
		}
	}
}

func report(t *testing.T, mode Mode, fault string, results map[string]load.Result) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		t.Logf("%-9s %-16s %-12s %4d questions %3d lost, outage %5.0f ms, by %v %v", mode, fault, name, r.Queries, r.Failed, r.OutageMS, r.By, r.Errors)
	}
}
