package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// foreignRules is kube-proxy's share on a node of a large cluster: 5,000 Services, 20,000 rules.
func foreignRules() string {
	var b strings.Builder
	b.WriteString("*nat\n")
	const services = 5000
	for i := range services {
		fmt.Fprintf(&b, ":KUBE-SVC-%d - [0:0]\n", i)
	}
	for i := range services {
		fmt.Fprintf(&b, "-A KUBE-SVC-%d ! -s 10.244.0.0/16 -d 10.96.%d.%d/32 -p tcp -m comment --comment \"ns/svc%d:http cluster IP\" -m tcp --dport 80 -j MARK --set-xmark 0x4000/0x4000\n", i, i/250, i%250, i)
		for k := range 3 {
			fmt.Fprintf(&b, "-A KUBE-SVC-%d -m comment --comment \"ns/svc%d -> 10.244.1.%d:80\" -m statistic --mode random --probability 0.3 -j ACCEPT\n", i, i, k)
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// TestKernelKeeperCost measures what looking after the rules costs on a node with 20,000 foreign ones. The budget is 1 %
// of a core: 10 ms a second.
func TestKernelKeeperCost(t *testing.T) {
	inKernelAlone(t, func(t *testing.T, p place) {
		if p.uml {
			return // commands cost many times as much there, which says nothing about a node
		}
		file := filepath.Join(t.TempDir(), "rules")
		if err := os.WriteFile(file, []byte(foreignRules()), 0o600); err != nil {
			t.Fatal(err)
		}
		sh(t, "iptables-"+string(p.flavour)+"-restore --noflush <"+file)
		n := started(t, p.node(t, Config{Guard: LevelSocket}))

		const glances = 50
		begin := time.Now()
		for range glances {
			n.keepLink()
			n.keepRules(t.Context())
		}
		idle := time.Since(begin) / glances
		t.Logf("%s: one look each second while nothing changes: %s", p.flavour, idle)
		if idle > 10*time.Millisecond {
			t.Errorf("looking takes %s each second, more than 1 %% of a core", idle)
		}

		// Somebody's rules change with every look, in the table that has them all.
		nat, raw := n.sides[0].seen["nat"], n.sides[0].seen["raw"]
		nat.allowance.has(time.Now(), n.part()) // the first time fills it
		before, rounds := nat.allowance.left, 0
		for nat.allowance.left > before-500*time.Millisecond && rounds < 20 {
			sh(t, fmt.Sprintf("iptables-%s -t nat -A KUBE-SVC-%d -j ACCEPT", p.flavour, rounds))
			n.keepRules(t.Context())
			rounds++
		}
		look := (before - nat.allowance.left) / time.Duration(max(rounds, 1))
		t.Logf("%s: one look at rules that changed: %s of CPU, so every %s at most", p.flavour, look, max(look*n.part(), glance))

		// With the saved time gone, no look is taken, however much changes; what is spent on one table is not missing for another.
		nat.allowance = allowance{left: -time.Second, at: time.Now()}
		sh(t, "iptables-"+string(p.flavour)+" -t raw -F")
		n.keepRules(t.Context())
		if len(ours(t, n.sides[0].tables, chainKey{"raw", "OUTPUT"})) == 0 {
			t.Error("rules of one table were not looked at since another had used up its time")
		}
		raw.allowance = allowance{left: -time.Second, at: time.Now()}
		sh(t, "iptables-"+string(p.flavour)+" -t raw -F")
		n.keepRules(t.Context())
		if len(ours(t, n.sides[0].tables, chainKey{"raw", "OUTPUT"})) != 0 {
			t.Error("rules were looked at beyond the budget")
		}
		raw.allowance = allowance{}
		n.keepRules(t.Context())
		if len(ours(t, n.sides[0].tables, chainKey{"raw", "OUTPUT"})) == 0 {
			t.Error("rules were not put back")
		}

		begin = time.Now()
		const renewals = 200
		for range renewals {
			if !n.renew() {
				t.Fatal("a renewal failed")
			}
		}
		t.Logf("%s: one renewal of the lease in a set: %s", p.flavour, time.Since(begin)/renewals)
		o, err := newOwnerLease(owned{fam: v4, served: addrs("169.254.25.10"), port: 53, ttl: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = o.Close() }()
		begin = time.Now()
		for range renewals {
			if err := o.Renew(addrs("169.254.25.10"), 3*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s: one renewal of the lease in an owner table: %s", p.flavour, time.Since(begin)/renewals)
	})
}
