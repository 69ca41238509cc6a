package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// fault is something that happens to the cache or the node while clients ask.
type fault struct {
	name string
	do   func(t *testing.T, r *rig)
	// pod and host are what clients may lose there; tcp is that of TCP clients in a Pod.
	pod, host, tcp loss
	// toggles is how often service begins or ends in good order. Who has a TCP connection open in that moment may lose it: its
	// packets are in connection tracking before it and out of it afterwards, or the other way round.
	toggles int
	// outage bounds the time without service, where questions may be lost at all.
	outage time.Duration
	// lane says beside which others the fault is made to happen: those of a lane follow each other.
	lane int
	// dark says that cluster DNS is gone, so that the baseline is lost and says nothing.
	dark bool
	// shaken says that kube-proxy's rules are hit too: a loss of the baseline is the fault's, not the machine's.
	shaken bool
	// where says in which settings there is such a fault; nil: in all.
	where func(r *rig) bool
	// long says that it takes long, so that only the whole matrix has it.
	long bool
	// resolved says that programs with the C libraries' and Go's resolvers ask too; in the whole matrix they always do.
	resolved bool
}

// loss is what clients may lose: some questions, and those of some time.
type loss struct {
	questions int
	time      time.Duration
}

// of is the number of questions for a client with a rate.
func (l loss) of(rate int) int { return l.questions + int(l.time.Seconds()*float64(rate)+0.999) }

// rigLease is the one of the rigs: the default.
const rigLease = 3 * time.Second

// failoverLanes is in how many parts the faults are cut.
const failoverLanes = 3

// afterLease bounds an outage that ends with the lease.
const afterLease = rigLease + 200*time.Millisecond

// faults are those of the failover promise that a single node can show.
func faults(r *rig) []fault {
	all := slices.Concat(deaths(r), hangs(r), disturbances())
	return slices.DeleteFunc(all, func(f fault) bool { return f.where != nil && !f.where(r) || f.long && !full() })
}

// killed is what the ends of processes may cost: events of them.
func (r *rig) killed(events int) (pod, host loss) {
	pod, host = loss{questions: 2 * events}, loss{questions: events}
	if r.guard < LevelOwner {
		// The host's own clients know of the cache's end by the lease alone.
		host = loss{time: time.Duration(events) * (rigLease + time.Second)}
	}
	if r.guard < LevelSocket {
		pod = host
	}
	return pod, host
}

// deaths are ends of the process, and starts.
func deaths(r *rig) []fault {
	pod, host := r.killed(2)
	pod1, host1 := r.killed(1)
	memory := func(r *rig) bool {
		_, err := os.Stat(filepath.Join(r.group, "memory.max"))
		return err == nil // cgroups of version 2: those of version 1 refuse a limit below what is in use
	}
	return []fault{
		{name: "nothing", do: func(*testing.T, *rig) { time.Sleep(2 * time.Second) }},
		{name: "SIGKILL", do: restarts(syscall.SIGKILL, time.Second), pod: pod, host: host, tcp: pod, outage: afterLease, resolved: true},
		{name: "restart", do: restarts(syscall.SIGTERM, 0), toggles: 4},
		{name: "two at once", do: twoAtOnce, toggles: 2},
		{name: "panic", do: func(t *testing.T, r *rig) {
			r.end(t, syscall.SIGQUIT) // Go's runtime ends the process as after a panic: a dump of all goroutines, exit code 2
			time.Sleep(time.Second)
			r.start(t)
		}, pod: pod1, host: host1, tcp: pod1, outage: afterLease, lane: 1},
		{name: "OOM kill", do: outOfMemory, pod: pod1, host: host1, tcp: pod1, outage: afterLease, lane: 1, where: memory},
		{name: "deleted", do: func(t *testing.T, r *rig) {
			r.end(t, syscall.SIGTERM)
			time.Sleep(2 * time.Second)
			r.start(t)
		}, toggles: 2, lane: 1},
		{name: "killed while starting", do: killedStarting, pod: loss{questions: 2 * 6}, host: loss{time: 3 * host.time, questions: 6}, tcp: loss{questions: 2 * 6}, outage: afterLease, lane: 1},
		{name: "killed while stopping", do: killedStopping, pod: loss{questions: 2 * 4}, host: loss{time: host1.time, questions: 4}, tcp: loss{questions: 2 * 4}, outage: afterLease, lane: 2},
	}
}

// hangs are times in which the cache lives and does not answer, or its upstream does not.
func hangs(r *rig) []fault {
	hang := loss{time: rigLease + time.Second}
	gone := 5 * time.Second
	if full() {
		gone = time.Minute
	}
	stuck := func(questions string) func(t *testing.T, r *rig) {
		return func(t *testing.T, r *rig) { r.stick(t, questions) }
	}
	return []fault{
		{name: "hang", do: stopped, pod: hang, host: hang, tcp: hang, outage: afterLease},
		{name: "one worker stuck", do: stuck("1"), pod: hang, host: hang, tcp: hang, outage: afterLease, lane: 1},
		{
			name: "all workers stuck", do: stuck("64"), pod: hang, host: hang, tcp: hang, outage: afterLease, lane: 1,
			where: func(r *rig) bool { return !r.p.uml }, // with one processor there is one worker
		},
		{name: "cluster DNS gone", do: func(t *testing.T, r *rig) { r.clusterDNSGone(t, gone) }, dark: true, lane: 2},
		{name: "throttled to 5 %", do: throttled, pod: hang, host: hang, tcp: hang, lane: 2, long: true, where: func(r *rig) bool { return r.group != "" }},
	}
}

// disturbances are what others do to the node.
func disturbances() []fault {
	held := 6 * time.Second // longer than one try to get the lock
	if full() {
		held = 10 * time.Second
	}
	return []fault{
		{name: "link", do: linkFaults, where: func(r *rig) bool { return r.p.uml }},
		// The host's kernel may have no dummy links; the address then lives on its local route alone.
		{name: "route deleted", do: routeDeleted, pod: loss{time: time.Second}, host: loss{time: time.Second}, tcp: loss{time: time.Second}, outage: time.Second, where: func(r *rig) bool { return !r.p.uml }},
		{name: "flush", do: flush, lane: 2},
		{name: "rule deleted", do: ruleDeleted, lane: 1},
		{name: "flush ruleset", do: flushRuleset, shaken: true, lane: 2, where: func(r *rig) bool { return r.p.flavour == NFT }},
		{name: "lock held", do: func(t *testing.T, r *rig) { r.lockHeld(t, held) }, toggles: 2, lane: 2, where: func(r *rig) bool { return r.p.flavour == Legacy }},
	}
}

// restarts ends the process twice, and starts another after it has been away for some time.
func restarts(sig syscall.Signal, away time.Duration) func(t *testing.T, r *rig) {
	return func(t *testing.T, r *rig) {
		for range 2 {
			time.Sleep(300 * time.Millisecond)
			r.end(t, sig)
			time.Sleep(away)
			r.start(t)
		}
	}
}

// stopped lets the whole process stand still for longer than the lease.
func stopped(t *testing.T, r *rig) {
	if err := r.cache.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(rigLease + 2*time.Second)
	if err := r.cache.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
}

// step is about as long as a step of a start or a stop takes.
func (r *rig) step() time.Duration {
	if r.p.uml {
		return 100 * time.Millisecond
	}
	return 5 * time.Millisecond
}

// killedStarting kills starts at several points in time. TestKilledAtEachStep does so at each step, on a fake.
func killedStarting(t *testing.T, r *rig) {
	r.kill(t)
	for i := range 5 {
		r.launch(t)
		time.Sleep(time.Duration(i*i) * r.step())
		r.kill(t)
	}
	r.start(t)
}

// killedStopping kills stops: while the sockets run dry, and while the rules are cleared.
func killedStopping(t *testing.T, r *rig) {
	for i := range 3 {
		if err := r.cache.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-time.After(time.Duration(i) * (200*time.Millisecond + 2*r.step())):
			r.kill(t)
		case <-r.done:
			r.cache = nil
		}
		r.start(t)
	}
}

// twoAtOnce starts a second cache, which waits, and then ends the first.
func twoAtOnce(t *testing.T, r *rig) {
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
}

// stick makes workers of the cache hang until the node has noticed, and then replaces it, as the liveness probe does. Where
// others go on answering, a proof may succeed by them until a worker has been away for two seconds; then service ends at once.
func (r *rig) stick(t *testing.T, questions string) {
	t.Helper()
	sh(t, fmt.Sprintf("ip netns exec pod env %s=stick %s %s %s", roleVar, program(stagedTest), r.target(), questions))
	r.within(afterLease, "out of service with a stuck worker", func() bool { return bytes.Contains(r.log(t), []byte("in_service=false")) })
	time.Sleep(time.Second)
	r.kill(t)
	r.start(t)
}
