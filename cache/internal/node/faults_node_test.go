package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/house"
)

// linkFaults takes link and address away, as NetworkManager and systemd-networkd do.
func linkFaults(t *testing.T, r *rig) {
	for _, f := range []string{"ip link del nodelocaldns", "ip link set nodelocaldns down", "ip addr del 169.254.25.10/32 dev nodelocaldns"} {
		sh(t, f)
		r.within(time.Second, "up and with its address after "+f, func() bool {
			l, err := r.p.host().Link(DefaultLink)
			return err == nil && l.Up && slices.Contains(l.Addrs, addrs("169.254.25.10")[0])
		})
	}
}

// routeDeleted takes away what keeps the addresses local where there is no link.
func routeDeleted(t *testing.T, r *rig) {
	sh(t, "ip route del local 169.254.25.10/32 dev lo table local metric 1")
	r.within(time.Second, "local again after its route was deleted", func() bool {
		spares, err := r.p.host().Spares()
		return err == nil && slices.Contains(spares, addrs("169.254.25.10")[0])
	})
}

// promptly is how soon rules must be back. Two seconds is the promise. Looking takes a command too, and commands are slow
// in User-Mode Linux.
func (r *rig) promptly() time.Duration {
	if r.p.uml {
		return 10 * time.Second
	}
	return 2500 * time.Millisecond
}

// rules lists ours in a table.
func (r *rig) rules(t *testing.T, tc tableChains) string {
	t.Helper()
	tab, _, err := r.p.host().Tables(v4, r.p.flavour, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := tab.List(tc.table, tc.chains)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, commentPrefix) }), "\n")
}

// eachTable calls f for each table that has rules of ours, with what they are.
func (r *rig) eachTable(t *testing.T, f func(tc tableChains, now func() string)) {
	t.Helper()
	for _, tc := range ourTables() {
		now := func() string { return r.rules(t, tc) }
		if now() != "" { // at LevelOwner the raw table is not used
			f(tc, now)
		}
	}
}

func (r *rig) iptables(args string) string { return "iptables-" + string(r.p.flavour) + args }

// flush takes all rules of a table away in one go, as a firewall reload does. kube-proxy's stay, or its repairs would be
// measured too.
func flush(t *testing.T, r *rig) {
	r.eachTable(t, func(tc tableChains, now func() string) {
		before := now()
		sh(t, r.iptables("-save -t "+tc.table)+" | grep -v nodedns: | "+r.iptables("-restore"))
		r.within(r.promptly(), "as before after flushing "+tc.table, func() bool { return now() == before })
	})
}

// ruleDeleted takes one rule of each table away.
func ruleDeleted(t *testing.T, r *rig) {
	r.eachTable(t, func(tc tableChains, now func() string) {
		before := now()
		all := strings.Split(before, "\n")
		sh(t, r.iptables(" -t "+tc.table+" -D "+strings.TrimPrefix(all[len(all)/2], "-A ")))
		r.within(r.promptly(), "as before after a rule of "+tc.table+" was deleted", func() bool { return now() == before })
	})
}

// flushRuleset takes away everything that nftables lets it, all of kube-proxy's too, which comes back at once.
func flushRuleset(t *testing.T, r *rig) {
	before := map[string]string{}
	r.eachTable(t, func(tc tableChains, now func() string) { before[tc.table] = now() })
	file := filepath.Join(r.dir, "ruleset")
	save := "{ echo flush ruleset; nft list table ip kube-proxy; } >" + file + "; nft -f " + file
	if r.mode != NFTables {
		save = r.iptables("-save") + " | grep -v nodedns: >" + file + "; nft flush ruleset; " + r.iptables("-restore") + " <" + file
	}
	sh(t, save)
	end := time.Now().Add(r.promptly())
	for _, tc := range ourTables() {
		want, ours := before[tc.table]
		if !ours {
			continue
		}
		r.within(time.Until(end), "as before after nft flush ruleset: "+tc.table, func() bool { return r.rules(t, tc) == want })
	}
}

// lockHeld stops the cache while somebody else has the xtables lock, and starts it while somebody has it again.
func (r *rig) lockHeld(t *testing.T, d time.Duration) {
	t.Helper()
	for _, do := range []func(){func() { r.end(t, syscall.SIGTERM) }, func() { r.start(t) }} {
		f, err := os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		release := time.AfterFunc(d, func() { _ = f.Close() })
		do()
		t.Logf("with the lock held for %s it took %s", d, time.Since(begin).Round(time.Millisecond))
		if release.Stop() {
			_ = f.Close() // done without the lock
		}
	}
}

// clusterDNSGone lets cluster DNS fall silent: what the cache knows goes on, and the cache stays in service and ready.
func (r *rig) clusterDNSGone(t *testing.T, d time.Duration) {
	t.Helper()
	if err := r.server.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	before := len(r.log(t))
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		for _, path := range []string{"/health", "/ready"} {
			if got := house.Page("169.254.25.10:8080", path); !strings.Contains(got, "200 OK") {
				r.late = append(r.late, "not well without cluster DNS: "+path+" says "+got)
			}
		}
	}
	if err := r.server.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if said := string(r.log(t)[before:]); strings.Contains(said, "in_service=false") {
		r.late = append(r.late, "not in service all the time without cluster DNS")
	}
	// Back without a restart: a name that nobody asked for before can only come from there.
	r.within(10*time.Second, "asking cluster DNS again", func() bool {
		_, err := askOnce(r.target(), fmt.Sprintf("n%d.svc.cluster.local.", time.Now().UnixNano()))
		return err == nil
	})
}

// The cgroup hierarchy: version 2 where its controllers are, else that of version 1 for processor time alone.
const (
	groups   = "/sys/fs/cgroup"
	groupsV1 = "/sys/fs/cgroup/cpu"
)

// makeGroup makes the cgroup for the cache's process.
func (r *rig) makeGroup(t *testing.T) {
	t.Helper()
	parent := groups
	if _, err := os.Stat(filepath.Join(groups, "cgroup.controllers")); err == nil {
		for _, controller := range []string{"+memory", "+cpu"} { // one that the kernel lacks is noticed by its missing files
			_ = os.WriteFile(filepath.Join(groups, "cgroup.subtree_control"), []byte(controller), 0o600)
		}
	} else {
		parent = groupsV1
	}
	dir := filepath.Join(parent, fmt.Sprintf("nodedns-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Logf("no cgroup for the cache: %v", err)
		return
	}
	r.group = dir
	t.Cleanup(func() { _ = os.Remove(dir) })
}

// limit writes a limit of the cgroup; false if it has none such.
func (r *rig) limit(file, value string) bool {
	return os.WriteFile(filepath.Join(r.group, file), []byte(value), 0o600) == nil
}

// outOfMemory makes the kernel kill the cache for its memory.
func outOfMemory(t *testing.T, r *rig) {
	begin := time.Now()
	if !r.limit("memory.max", "1M") {
		t.Fatalf("no memory limit in %s", r.group)
	}
	select {
	case err := <-r.done:
		r.dying += time.Since(begin)
		if err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("out of memory, the cache ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the kernel did not kill the cache")
	}
	r.cache = nil
	if !r.limit("memory.max", "max") {
		t.Fatal("the limit stays")
	}
	time.Sleep(time.Second)
	r.start(t)
}

// throttled gives the cache one twentieth of a processor for a while. It must keep its lease.
func throttled(t *testing.T, r *rig) {
	set := func(v2, v1 string) {
		if !r.limit("cpu.max", v2) && !r.limit("cpu.cfs_quota_us", v1) {
			t.Fatalf("no limit of processor time in %s", r.group)
		}
	}
	before := len(r.log(t))
	set("5000 100000", "5000")
	time.Sleep(10 * time.Second)
	set("max 100000", "-1")
	if said := string(r.log(t)[before:]); strings.Contains(said, "in_service=false") {
		r.late = append(r.late, "not in service all the time with 5 % of a processor")
	}
	time.Sleep(time.Second)
}
