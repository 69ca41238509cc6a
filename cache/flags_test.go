package main

import (
	"flag"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodedns/nodedns/cache/internal/node"
)

// vars is an environment for tests.
func vars(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func parse(args ...string) (*options, error) {
	return parseFlags(args, environment{lookup: vars(), stdout: io.Discard, stderr: io.Discard})
}

func text(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, " ")
}

// TestN10LocalIP: empty elements and spaces are ignored, duplicates merged, anything else refused with the value.
func TestN10LocalIP(t *testing.T) {
	for _, tt := range []struct{ list, want, err string }{
		{list: "169.254.25.10,", want: "169.254.25.10"},
		{list: ",169.254.25.10", want: "169.254.25.10"},
		{list: " 169.254.25.10 , 10.96.0.10 ", want: "169.254.25.10 10.96.0.10"},
		{list: "169.254.25.10,169.254.25.10", want: "169.254.25.10"},
		{list: "169.254.25.10,fd00::25:10", want: "169.254.25.10 fd00::25:10"},
		{list: "::ffff:169.254.25.10", want: "169.254.25.10"},
		{list: "127.0.0.1", want: "127.0.0.1"},
		{list: "", err: "no address"},
		{list: ",", err: "no address"},
		{list: " , ", err: "no address"},
		{list: "0.0.0.0", err: "0.0.0.0"},
		{list: "169.254.25.10/32", err: "169.254.25.10/32"},
		{list: "node.example.test", err: "node.example.test"},
		{list: "__PILLAR__LOCAL__DNS__", err: "__PILLAR__LOCAL__DNS__"},
		{list: "fe80::1", err: "fe80::1"},
		{list: "224.0.0.1", err: "224.0.0.1"},
	} {
		o, err := parse("-localip", tt.list)
		switch {
		case tt.err == "" && err != nil:
			t.Errorf("%q: %v", tt.list, err)
		case tt.err == "" && text(o.localIPs) != tt.want:
			t.Errorf("%q: %s, want %s", tt.list, text(o.localIPs), tt.want)
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), "-localip") || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%q: error %v, want one about %q", tt.list, err, tt.err)
		}
	}
}

// TestFlagProblemsAreJoined: one run shows everything that is wrong.
func TestFlagProblemsAreJoined(t *testing.T) {
	_, err := parse("-localip", "x", "-dns.port", "0", "-health-port", "99999", "-metrics-listen-address", "9353", "-syncinterval", "soon",
		"-mode", "magic", "-cluster-dns", "kube-dns", "-cluster-upstream", "y", "-guard", "hope", "-iptables", "bpf", "-lease", "1500ms",
		"-teardown", "maybe", "-memory-limit", "12X", "-drain", "0s", "-wait", "-1s", "-log-level", "loud", "-log-format", "xml")
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`-localip: address "x"`, `-dns.port: "0"; allowed: 1 to 65535`, `-health-port: "99999"`, `-metrics-listen-address: "9353"`, `-syncinterval: "soon"`,
		`-mode: "magic"; allowed: auto, ipvs, iptables, nftables`, `-cluster-dns: address "kube-dns"`, `-cluster-upstream: "y"`, `-guard:`, `-iptables: "bpf"`,
		`-lease: 1.5s`, `-teardown: "maybe"; allowed: mode, all, none`, `-memory-limit: "12X"`, `-drain: 0s`, `-wait: -1s`, `-log-level: "loud"`, `-log-format: "xml"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %s:\n%v", want, err)
		}
	}
}

// TestIncumbentFlags: the flags of the incumbent's manifest are taken as they are, with their meaning.
func TestIncumbentFlags(t *testing.T) {
	o, err := parse("-localip", "169.254.20.10,10.96.0.10", "-conf", "/etc/Corefile", "-upstreamsvc", "kube-dns-upstream", "-setupinterface=true",
		"-interfacename", "nodelocaldns", "-setupiptables=false", "-corefile", "/ignored", "-basecorefile", "/etc/coredns/Corefile.base", "-kubednscm", "/etc/kube-dns",
		"-dns.port", "1053", "-health-port", "8081", "-metrics-listen-address", ":9353", "-skipteardown=true", "-syncinterval=15", "-pidfile", "/run/x.pid", "-reloadwithsignal=true")
	if err != nil {
		t.Fatal(err)
	}
	if o.conf != "/etc/Corefile" || o.base != "/etc/coredns/Corefile.base" || o.kubeDNSDir != "/etc/kube-dns" || o.upstreamSvc != "kube-dns-upstream" ||
		o.setupRules || !o.setupInterface || o.dnsPort != 1053 || o.healthPort != 8081 || o.teardown != node.LeaveNothing || o.syncInterval != 15*time.Second ||
		o.pidFile != "/run/x.pid" || !o.reloadSignal || !o.managesNode() {
		t.Errorf("options: %+v", o)
	}
	if o, err = parse("-syncinterval", "1m30s"); err != nil || o.syncInterval != 90*time.Second {
		t.Errorf("a duration: %v, %v", o.syncInterval, err)
	}
	if _, err = parse("-skipteardown", "-teardown=all"); err == nil {
		t.Error("-skipteardown with -teardown=all is accepted")
	}
}

func TestDefaults(t *testing.T) {
	o, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	if text(o.localIPs) != "169.254.25.10" || o.interfaceName != "nodelocaldns" || o.dnsPort != 53 || o.lease != 3*time.Second || o.memoryLimit != autoMemory ||
		o.conf != "/etc/Corefile" || o.base != "/etc/coredns/Corefile.base" || o.teardown != node.LeaveByMode || o.mode != "" || !o.notrack {
		t.Errorf("defaults: %+v", o)
	}
}

// TestFlagNames holds the names that manifests of the incumbent use.
func TestFlagNames(t *testing.T) {
	fs, _ := newFlagSet()
	var names []string
	fs.VisitAll(func(f *flag.Flag) {
		names = append(names, f.Name)
		if f.Usage == "" {
			t.Errorf("-%s has no description", f.Name)
		}
	})
	for _, want := range []string{"localip", "interfacename", "setupinterface", "setupiptables", "conf", "corefile", "basecorefile", "kubednscm", "upstreamsvc",
		"dns.port", "health-port", "metrics-listen-address", "skipteardown", "syncinterval", "pidfile", "reloadwithsignal"} {
		if !slices.Contains(names, want) {
			t.Errorf("the incumbent's flag -%s is gone", want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{"auto": autoMemory, "0": 0, "1024": 1024, "64Ki": 64 << 10, "128Mi": 128 << 20, "1Gi": 1 << 30, "10M": 1e7} {
		if got, err := parseBytes(in); err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-1", "x", "9999999999Gi", "1.5Mi"} {
		if _, err := parseBytes(in); err == nil {
			t.Errorf("parseBytes(%q) is accepted", in)
		}
	}
}

// TestCluster: where the cluster DNS is and where cluster names go, by mode (C09, N11).
func TestCluster(t *testing.T) {
	for _, tt := range []struct {
		name          string
		args          []string
		mode          node.Mode
		env           []string
		dns, upstream string
		err           string
	}{
		{name: "IPVS: the cluster DNS itself", mode: node.IPVS, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10"}, dns: "10.96.0.10", upstream: "10.96.0.10"},
		{name: "IPVS with the upstream Service", mode: node.IPVS, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10", "KUBE_DNS_UPSTREAM_SERVICE_HOST", "10.96.0.11"}, dns: "10.96.0.10", upstream: "10.96.0.10"},
		{name: "IPVS, upstream Service named", mode: node.IPVS, args: []string{"-upstreamsvc", "kube-dns-upstream"}, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10", "KUBE_DNS_UPSTREAM_SERVICE_HOST", "10.96.0.11"}, dns: "10.96.0.10", upstream: "10.96.0.11"},
		{name: "a Service called coredns", mode: node.IPVS, env: []string{"COREDNS_SERVICE_HOST", "10.233.0.3"}, dns: "10.233.0.3", upstream: "10.233.0.3"},
		{name: "the flag wins", mode: node.IPVS, args: []string{"-cluster-dns", "10.0.0.10"}, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10"}, dns: "10.0.0.10", upstream: "10.0.0.10"},
		{name: "iptables: the upstream Service", mode: node.IPTables, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10", "KUBE_DNS_UPSTREAM_SERVICE_HOST", "10.96.0.11"}, dns: "10.96.0.10", upstream: "10.96.0.11"},
		{name: "iptables without it: unknown, never the own address", mode: node.IPTables, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10"}, dns: "10.96.0.10"},
		{name: "N11 iptables, upstream is an own address", mode: node.IPTables, args: []string{"-upstreamsvc", "kube-dns"}, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10"}, err: "10.96.0.10, an address of this cache"},
		{name: "N11 IPVS, upstream is the local address", mode: node.IPVS, args: []string{"-cluster-upstream", "169.254.25.10"}, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10"}, err: "169.254.25.10"},
		{name: "unknown", mode: node.IPVS, err: "KUBE_DNS_SERVICE_HOST"},
		{name: "unknown names the flag", mode: node.IPTables, err: "-cluster-dns"},
		{name: "empty variable", mode: node.IPVS, env: []string{"KUBE_DNS_SERVICE_HOST", ""}, err: "-cluster-dns"},
		{name: "headless", mode: node.IPVS, env: []string{"KUBE_DNS_SERVICE_HOST", "None"}, err: "-cluster-dns"},
		{name: "variable that is no address", mode: node.IPVS, env: []string{"KUBE_DNS_SERVICE_HOST", "<nil>"}, err: `KUBE_DNS_SERVICE_HOST="<nil>"`},
		{name: "none", mode: node.IPTables, args: []string{"-cluster-dns", "none"}, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10"}},
		{name: "no node set up", args: []string{"-setupinterface=false", "-setupiptables=false"}, env: []string{"KUBE_DNS_SERVICE_HOST", "10.96.0.10"}, dns: "10.96.0.10", upstream: "10.96.0.10"},
		{name: "no node set up, nothing known", args: []string{"-setupinterface=false", "-setupiptables=false"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, err := parse(tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			c, err := findCluster(o, tt.mode, vars(tt.env...))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want one about %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tt.dns, tt.upstream}, []string{text(c.dns), text(c.upstream)}); diff != "" {
				t.Errorf("cluster DNS and upstream (-want +got):\n%s", diff)
			}
			if len(c.upstream) == 0 && !strings.Contains(c.hint, "-cluster-upstream") {
				t.Errorf("hint %q names no flag", c.hint)
			}
		})
	}
}

func TestCommands(t *testing.T) {
	for _, args := range [][]string{{"serv"}, {"check"}, {"check", "a", "b"}, {"cleanup", "x"}, {"-localip", "127.0.0.1", "x"}, {"-nonsense"}} {
		if err := run(t.Context(), args, environment{lookup: vars(), stdout: io.Discard, stderr: io.Discard}); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
	for _, args := range [][]string{{"version"}, {"-version"}, {"-h"}} {
		var out strings.Builder
		if err := run(t.Context(), args, environment{lookup: vars(), stdout: &out, stderr: &out}); err != nil || !strings.Contains(out.String(), "nodedns-cache") {
			t.Errorf("%q: %v, %q", args, err, out.String())
		}
	}
}
