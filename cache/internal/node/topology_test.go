package node

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// topology is a node with a Pod, and another node with the cluster DNS, each a network namespace. The test's own
// namespace is the node.
//
//	pod 10.244.0.2 ── br0 10.244.0.1 | node 172.30.0.1 ── 172.30.0.2 | other node, DNS at 10.244.1.53
const topology = `
ip link add br0 type bridge; ip addr add 10.244.0.1/24 dev br0; ip link set br0 up
ip netns add pod; ip link add pod0 type veth peer name eth0 netns pod; ip link set pod0 master br0 up
ip -n pod addr add 10.244.0.2/24 dev eth0; ip -n pod link set eth0 up; ip -n pod link set lo up
ip -n pod route add default via 10.244.0.1
ip netns add other; ip link add eth0 type veth peer name eth0 netns other
ip addr add 172.30.0.1/24 dev eth0; ip link set eth0 up
ip -n other addr add 172.30.0.2/24 dev eth0; ip -n other link set eth0 up; ip -n other link set lo up
ip -n other addr add 10.244.1.53/32 dev lo; ip -n other addr add 10.244.1.54/32 dev lo
ip -n other route add 10.244.0.0/24 via 172.30.0.1
ip route add 10.244.1.0/24 via 172.30.0.2
ip route add default via 172.30.0.2
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
`

// topology6 is the same in IPv6.
const topology6 = `
ip addr add fd10::1/64 dev br0 nodad; ip -n pod addr add fd10::2/64 dev eth0 nodad; ip -n pod -6 route add default via fd10::1
ip addr add fd30::1/64 dev eth0 nodad; ip -n other addr add fd30::2/64 dev eth0 nodad
ip -n other addr add fd11::53/128 dev lo nodad; ip -n other -6 route add fd10::/64 via fd30::1
ip -6 route add fd11::/64 via fd30::2
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
`

// proxy6 is kube-proxy's part of it, in IPVS mode.
const proxy6 = `
ip addr add fd00:96::a/128 dev kube-ipvs0 nodad
for p in u t; do ipvsadm -A -$p [fd00:96::a]:53 -s rr; ipvsadm -a -$p [fd00:96::a]:53 -r [fd11::53]:53 -m; done
`

// proxies do of kube-proxy's work what concerns the cluster DNS, in each of its modes.
func proxies() map[Mode]string {
	return map[Mode]string{
		IPVS: `
ip link add kube-ipvs0 type dummy; ip addr add 10.96.0.10/32 dev kube-ipvs0
for p in u t; do ipvsadm -A -$p 10.96.0.10:53 -s rr; ipvsadm -a -$p 10.96.0.10:53 -r 10.244.1.53:53 -m; done
echo 1 >/proc/sys/net/ipv4/vs/conntrack
$IPT -t nat -A OUTPUT ! -s 10.244.0.0/16 -d 10.96.0.10/32 -j MARK --set-xmark 0x4000/0x4000
$IPT -t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE
`,
		IPTables: `
$IPT -t nat -N KUBE-SERVICES
for c in PREROUTING OUTPUT; do $IPT -t nat -A $c -m comment --comment "kubernetes service portals" -j KUBE-SERVICES; done
for p in udp tcp; do
  for e in 53 54; do
    $IPT -t nat -N KUBE-SEP-$e$p
    $IPT -t nat -A KUBE-SEP-$e$p -p $p -m comment --comment "kube-system/kube-dns" -m $p -j DNAT --to-destination 10.244.1.$e:53
  done
  for s in 10 11; do
    $IPT -t nat -N KUBE-SVC-$s$p
    $IPT -t nat -A KUBE-SERVICES -d 10.96.0.$s/32 -p $p -m comment --comment "kube-system/kube-dns cluster IP" -m $p --dport 53 -j KUBE-SVC-$s$p
    $IPT -t nat -A KUBE-SVC-$s$p -m comment --comment "kube-system/kube-dns -> 10.244.1.53:53" -m statistic --mode random --probability 0.5 -j KUBE-SEP-53$p
    $IPT -t nat -A KUBE-SVC-$s$p -m comment --comment "kube-system/kube-dns -> 10.244.1.54:53" -j KUBE-SEP-54$p
  done
done
`,
		NFTables: `
nft -f - <<'END'
table ip kube-proxy {
  chain service-AAAAAAAA-kube-system/kube-dns/udp/dns {
    meta l4proto udp dnat ip addr . port to numgen random mod 2 map { 0 : 10.244.1.53 . 53, 1 : 10.244.1.54 . 53 }
  }
  chain service-BBBBBBBB-kube-system/kube-dns/tcp/dns-tcp {
    meta l4proto tcp dnat ip addr . port to numgen random mod 2 map { 0 : 10.244.1.53 . 53, 1 : 10.244.1.54 . 53 }
  }
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = {
      10.96.0.10 . udp . 53 : goto service-AAAAAAAA-kube-system/kube-dns/udp/dns,
      10.96.0.10 . tcp . 53 : goto service-BBBBBBBB-kube-system/kube-dns/tcp/dns-tcp,
      10.96.0.11 . udp . 53 : goto service-AAAAAAAA-kube-system/kube-dns/udp/dns,
      10.96.0.11 . tcp . 53 : goto service-BBBBBBBB-kube-system/kube-dns/tcp/dns-tcp }
  }
  chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
  chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
}
END
`,
	}
}

func proxyScript(mode Mode, flavour Flavour) string {
	return strings.ReplaceAll(proxies()[mode], "$IPT", "iptables-"+string(flavour))
}

// rig is a running topology.
type rig struct {
	p     place
	mode  Mode
	guard Level
	dir   string
	to    string        // what clients ask; default: by mode
	caps  string        // the capabilities that are left to the cache, as setpriv takes them; default: all
	flags []string      // besides the usual ones
	dying time.Duration // from SIGKILLs to the ends of their processes, in the present fault
	late  []string      // what did not happen in time during the present fault
	// server is the cluster DNS.
	server *exec.Cmd
	// group is a cgroup for the cache's process; empty where the kernel has none.
	group string
	cache *exec.Cmd
	logs  string
	begun int64 // where in logs the present process began
	done  chan error
}

// newRig builds the topology in this namespace, with a cluster DNS and the rules of a kube-proxy.
func newRig(t *testing.T, p place) *rig {
	t.Helper()
	return newRigWith(t, p, proxyScript(p.mode, p.flavour))
}

// newRigWith is newRig with another script for what kube-proxy does.
func newRigWith(t *testing.T, p place, proxy string) *rig {
	t.Helper()
	r := &rig{p: p, mode: p.mode, guard: p.guard, dir: t.TempDir()}
	sh(t, topology+proxy)
	t.Cleanup(func() { sh(t, "ip netns del pod; ip netns del other") })
	server := exec.CommandContext(t.Context(), "ip", "netns", "exec", "other", os.Args[0])
	server.Env = append(os.Environ(), roleVar+"=server")
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	server.Stderr = t.Output()
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	r.server = server
	r.makeGroup(t)
	lines := bufio.NewScanner(out)
	for range 2 {
		if !lines.Scan() {
			t.Fatalf("the DNS server did not start: %v", lines.Err())
		}
	}
	corefile := `.:53 {
    errors
    cache 30 {
        serve_stale 1h immediate
    }
    rewrite name suffix .resolver.cluster.local ` + rewritten + ` answer auto
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
    health 169.254.25.10:8080
}
`
	if err := os.WriteFile(filepath.Join(r.dir, "Corefile"), []byte(corefile), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.cache != nil {
			r.kill(t)
		}
		if t.Failed() || os.Getenv("NODE_TEST_SUB") != "" {
			if b, err := os.ReadFile(r.logs); err == nil {
				t.Logf("the cache said:\n%s", b)
			}
		}
	})
	return r
}

// start starts the cache and waits until it is in service.
func (r *rig) start(t *testing.T) {
	t.Helper()
	r.launch(t)
	r.inService(t)
}

func (r *rig) launch(t *testing.T) {
	t.Helper()
	upstream := "10.96.0.10"
	if r.mode != IPVS {
		upstream = "10.96.0.11"
	}
	r.logs = filepath.Join(r.dir, "cache.log")
	log, err := os.OpenFile(r.logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if r.begun, err = log.Seek(0, io.SeekEnd); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(stagedCache), "-conf="+filepath.Join(r.dir, "Corefile"), "-basecorefile=", "-mode="+string(r.mode),
		"-cluster-dns=10.96.0.10", "-cluster-upstream="+upstream, "-guard="+r.guard.String(), "-iptables="+string(r.p.flavour),
		"-metrics-listen-address=", "-log-level=debug")
	cmd.Args = append(cmd.Args, r.flags...)
	if r.group != "" && r.caps == "" {
		cmd.Args = append([]string{"sh", "-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, r.group}, cmd.Args...)
		if cmd.Path, err = exec.LookPath("sh"); err != nil {
			t.Fatal(err)
		}
	}
	if r.caps != "" {
		// On a read-only root, and with these capabilities and no way to others.
		cmd.Args = append([]string{
			"unshare", "-m", "sh", "-c", `mount -o remount,bind,ro / && exec setpriv --bounding-set="$0" "$@"`, r.caps,
		}, cmd.Args...)
		if cmd.Path, err = exec.LookPath("unshare"); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	r.cache, r.done = cmd, done
}

// inService waits until the cache itself answers a Pod.
func (r *rig) inService(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for time.Now().Before(deadline) {
		select {
		case err := <-r.done:
			r.cache = nil
			t.Fatalf("the cache ended: %v", err)
		default:
		}
		if b, err := os.ReadFile(r.logs); err == nil && bytes.Contains(b[r.begun:], []byte("in_service=true")) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the cache did not go into service")
}

func (r *rig) kill(t *testing.T) {
	t.Helper()
	r.end(t, syscall.SIGKILL)
}

// end sends a signal and waits for the process to end.
func (r *rig) end(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := r.cache.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	sent := time.Now()
	select {
	case err := <-r.done:
		if sig != syscall.SIGTERM {
			r.dying += time.Since(sent)
		}
		if sig == syscall.SIGTERM && err != nil {
			t.Errorf("the cache ended with %v", err)
		}
	case <-time.After(40 * time.Second):
		_ = r.cache.Process.Kill()
		t.Errorf("the cache did not end 40 s after signal %v", sig)
		<-r.done
	}
	r.cache = nil
}

// level is the guard level that the present process says it has.
func (r *rig) level(t *testing.T) string {
	t.Helper()
	all := regexp.MustCompile(`guard level chosen.* level=(\w+)`).FindAllSubmatch(r.log(t), -1)
	if len(all) == 0 {
		return "none"
	}
	return string(all[len(all)-1][1])
}

// log is what the present process has written.
func (r *rig) log(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(r.logs)
	if err != nil {
		t.Fatal(err)
	}
	return b[r.begun:]
}
