package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/nodedns/nodedns/e2e/load"
)

// matrixVar makes the failover tests print a line for each cell of the matrix; "full" makes it the whole one.
const matrixVar = "NODE_TEST_MATRIX"

func full() bool { return os.Getenv(matrixVar) == "full" }

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
	inKernelWithCache(t, settings(failoverLanes), func(t *testing.T, p place) {
		r := newRig(t, p)
		if p.lane == 0 {
			report(t, p, "no cache yet", r.during(t, r.raws("10.96.0.10:53"), func() { time.Sleep(time.Second) }))
		}
		untouched := footprint(t)
		r.start(t)
		for _, f := range faults(r) {
			if f.lane != p.lane {
				continue
			}
			t.Run(f.name, func(t *testing.T) {
				r.fault(t, f, r.raws(r.target()))
				if f.name == "nothing" {
					untracked(t)
				}
			})
			if f.resolved || full() {
				t.Run(f.name+", resolvers", func(t *testing.T) { r.fault(t, f, r.resolvers()) })
			}
		}
		t.Run("cleanup", func(t *testing.T) {
			r.kill(t)
			sh(t, program(stagedCache)+" cleanup")
			if diff := cmp.Diff(untouched, footprint(t)); diff != "" {
				t.Errorf("after all that and cleanup, the node is not as before (-before +after):\n%s", diff)
			}
		})
	})
}

// footprint is everything on the node of which some could be ours: rules and chains of both flavours and families, tables,
// sets, links, addresses, routes, files. The chains that are part of a table stand in every table that was ever looked at.
func footprint(t *testing.T) []string {
	t.Helper()
	out := sh(t, `
for f in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do $f-save 2>/dev/null | grep -E '^(-A|:[^ ]+ - )' | sed 's/ \[.*//;s/^/'$f' /'; done
nft list tables 2>/dev/null | grep -v -E ' (raw|nat|filter|mangle)$' || true
ipset list -n 2>/dev/null || true
ip -o link | awk '{print "link", $2}'
ip -o addr | grep -v fe80: | awk '{print "address", $2, $4}'
{ ip route show table all; ip -6 route show table all; } | grep -v -E '(fe80|ff00):' | sed 's/ expires.*//'
find /run -xdev -type f | grep -v xtables.lock || true`)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	return lines
}

// TestKernelSurroundings does the same, with fewer faults, where the surroundings are special.
func TestKernelSurroundings(t *testing.T) {
	inKernelWithCache(t, settings(2, "ipvs", "nftables", "iptables-legacy"), func(t *testing.T, p place) {
		r := newRig(t, p)
		few := func(t *testing.T) {
			for _, f := range faults(r) {
				if f.name == "SIGKILL" || f.name == "restart" && !p.uml {
					t.Run(f.name, func(t *testing.T) { r.fault(t, f, r.raws(r.target())) })
				}
			}
		}
		for _, s := range surroundings() {
			if s.lane != p.lane || s.where != nil && !s.where(p) {
				continue
			}
			t.Run(s.name, func(t *testing.T) { s.do(t, r, few) })
		}
	})
}

// TestKernelOpenSocket checks that programs keep their answers on sockets that they had asked from before the cache went or
// came: their source is an address that stays, and what connection tracking knows of them does not lead to a cache that is
// gone.
func TestKernelOpenSocket(t *testing.T) {
	inKernelWithCache(t, settings(2), func(t *testing.T, p place) {
		r := newRig(t, p)
		tracked := p.lane == 1
		if tracked {
			r.flags = []string{"-notrack=false"}
		}
		r.start(t)
		was := load.ByCache
		for _, step := range []struct {
			name string
			do   func()
			by   string
			skip bool
		}{
			{"left", func() { r.end(t, syscall.SIGTERM) }, load.ByClusterDNS, false},
			// What is tracked stays with cluster DNS until its socket is closed.
			{"came", func() { r.start(t) }, load.ByCache, tracked},
			// Nobody is there to make the kernel forget; and a lease holds on to the host's clients for a while.
			{"was killed", func() { r.kill(t) }, load.ByClusterDNS, tracked || p.guard < LevelOwner},
		} {
			if step.skip {
				break
			}
			c, err := dns.Dial("udp", r.target())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if by, err := askOn(c); by != was || err != nil {
				t.Errorf("before the cache %s, the answer is from %q (error %v), want %q", step.name, by, err, was)
			}
			step.do()
			if by, err := askOn(c); by != step.by || err != nil {
				t.Errorf("after the cache %s, a socket from %s has its answer from %q (error %v), want %q", step.name, c.LocalAddr(), by, err, step.by)
			}
			was = step.by
		}
	})
}

// askOn asks over an open socket and says who answers.
func askOn(c *dns.Conn) (by string, err error) {
	a, _, err := (&dns.Client{Timeout: deadline}).ExchangeWithConn(load.Question(rawNames()[0]), c)
	if err != nil {
		return "", err
	}
	return load.Judge(a)
}

// surrounding is a node that is not as usual.
type surrounding struct {
	name  string
	lane  int
	where func(p place) bool
	do    func(t *testing.T, r *rig, few func(t *testing.T))
}

func surroundings() []surrounding {
	guarded := func(level Level) func(t *testing.T, r *rig, few func(t *testing.T)) {
		return func(t *testing.T, r *rig, few func(t *testing.T)) {
			r.guard = level
			r.start(t)
			few(t)
			r.end(t, syscall.SIGTERM)
			r.guard = r.p.guard
		}
	}
	host := func(p place) bool { return !p.uml }
	return []surrounding{
		{name: "default-drop firewall", do: func(t *testing.T, r *rig, few func(t *testing.T)) {
			ipt := "iptables-" + string(r.p.flavour)
			sh(t, ipt+" -A INPUT -m conntrack --ctstate INVALID -j DROP; "+ipt+" -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; "+ipt+" -P INPUT DROP; "+
				ipt+" -A INPUT -m conntrack --ctorigdst 10.96.0.10 -j ACCEPT # for the baseline: with IPVS, INPUT sees the ClusterIP")
			r.start(t)
			few(t)
			sh(t, ipt+" -P INPUT ACCEPT; "+ipt+" -D INPUT -m conntrack --ctstate INVALID -j DROP")
			r.end(t, syscall.SIGTERM)
		}},
		{name: "tracked", lane: 1, do: func(t *testing.T, r *rig, few func(t *testing.T)) {
			r.flags = []string{"-notrack=false"}
			r.start(t)
			if strings.Contains(dump(t, r.p.host(), r.p.flavour), "raw -A") {
				t.Error("something keeps traffic out of connection tracking")
			}
			few(t)
			r.end(t, syscall.SIGTERM)
			r.flags = nil
		}},
		{name: "guard lease", where: host, do: guarded(LevelLease)},
		{name: "guard plain", lane: 1, where: host, do: guarded(LevelPlain)},
		{name: "IPv6", lane: 1, where: func(p place) bool { return p.uml }, do: func(t *testing.T, r *rig, few func(t *testing.T)) {
			sh(t, topology6+proxy6)
			r.flags = []string{"-localip=169.254.25.10,fd00::25:10", "-cluster-dns=10.96.0.10,fd00:96::a"}
			r.to = "[fd00::25:10]:53"
			r.start(t)
			few(t)
		}},
	}
}

// disturbed says whether the machine got in the way of the measurement.
func disturbed(got map[string]load.Result, f fault) bool {
	for _, res := range got {
		if float64(res.Queries) < 0.7*float64(res.Rate)*res.Seconds {
			return true
		}
	}
	return got[baseline].Failed > 0 && !f.dark && !f.shaken
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

// fault makes a fault happen and checks what was lost. It is tried again while the machine itself is in the way: then the
// baseline loses questions too, or clients do not get to ask as often as they should. It is also tried again if too much was
// lost while the baseline had to wait for its answers: a killed process takes with it what a stall left lying in its sockets.
func (r *rig) fault(t *testing.T, f fault, clients []client) {
	t.Helper()
	var got map[string]load.Result
	var wrong []string
	level := r.level(t)
	for range 3 {
		r.late, r.dying = nil, 0
		got = r.during(t, clients, func() { f.do(t, r) })
		report(t, r.p, f.name, got)
		if r.dying > 0 {
			// Until the kernel has taken a killed process apart its sockets are there, and take questions with them. That is
			// milliseconds, and many of them in User-Mode Linux.
			t.Logf("%s: processes took %s to die", f.name, r.dying)
		}
		wrong = slices.Clone(r.late)
		for _, c := range clients {
			if c.name != baseline {
				wrong = append(wrong, r.judge(f, c, got[c.name], got[baseline])...)
			}
		}
		if t.Failed() || !disturbed(got, f) && (len(wrong) == 0 || !stalled(got[baseline])) {
			break
		}
		t.Logf("the machine was disturbed: %q", wrong)
	}
	for _, w := range wrong {
		t.Error(w)
	}
	for _, c := range clients {
		if c.name != baseline {
			r.cell(f, c, level, got[c.name], got[baseline])
		}
	}
}

// lostAt is when the first lost question was sent, as the cache's log gives times.
func lostAt(r load.Result) string {
	return r.Start.Add(time.Duration(r.Failures[0].SentMS * float64(time.Millisecond))).UTC().Format("15:04:05.000")
}

// stalled says whether the machine stood still for a while: an answer of the baseline takes a millisecond or a few.
func stalled(base load.Result) bool { return base.P99MS > 200 }

// judge says what is wrong with what one client lost.
func (r *rig) judge(f fault, c client, res, base load.Result) (wrong []string) {
	bad := func(format string, args ...any) { wrong = append(wrong, c.name+": "+fmt.Sprintf(format, args...)) }
	most := f.pod.of(c.rate)
	if c.from == "host" {
		most = f.host.of(c.rate)
	}
	if c.transport == "tcp" {
		most = max(most, f.tcp.of(c.rate))
	}
	if c.transport == "tcp" {
		most += min(res.Failed, f.toggles)
	}
	most += int(r.dying.Seconds()*float64(c.rate) + 0.999)
	beyond, outage := res.Failed, base.OutageMS
	if f.dark {
		outage = 0
	} else {
		beyond -= int(float64(base.Failed)/float64(max(base.Queries, 1))*float64(res.Queries) + 0.5)
	}
	if beyond > most {
		bad("%d of %d questions lost beyond the baseline, want at most %d, the first at %s: %v", beyond, res.Queries, most, lostAt(res), res.Errors)
	}
	if limit := float64(f.outage.Milliseconds()) + outage + 2*1000/float64(c.rate); f.outage > 0 && res.OutageMS > limit {
		bad("outage of %.0f ms, want at most %.0f", res.OutageMS, limit)
	}
	if res.Queries == 0 || res.By[load.ByCache] == 0 {
		bad("the cache answered none of %d questions", res.Queries)
	}
	return wrong
}

// cell prints a cell of the matrix, for the program that gathers them.
func (r *rig) cell(f fault, c client, level string, res, base load.Result) {
	if os.Getenv(matrixVar) == "" {
		return
	}
	text, err := json.Marshal(load.Cell{
		Mode: r.p.setting(), Guard: level, Fault: f.name, Client: c.title(), Transport: c.transport, From: c.from,
		Queries: res.Queries, Failed: res.Failed, BaselineFailed: base.Failed, OutageMS: res.OutageMS, AnsweredBy: res.By,
	})
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s%s\n", load.CellPrefix, text)
}

func report(t *testing.T, p place, fault string, results map[string]load.Result) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		t.Logf("%-15s %-16s %-12s %4d questions %3d lost, outage %5.0f ms, by %v %v", p.setting(), fault, name, r.Queries, r.Failed, r.OutageMS, r.By, r.Errors)
	}
}
