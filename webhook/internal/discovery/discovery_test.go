package discovery

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func TestReadResolvConf(t *testing.T) {
	for name, tt := range map[string]struct {
		text    string
		want    Resolver
		problem string
	}{
		"plain": {"search nodedns.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n",
			Resolver{Nameservers: addrs("10.96.0.10"), Domain: "cluster.local", Known: true}, ""},
		"other domain, host searches": {"# x\nnameserver 10.0.0.10\nnameserver fd00::a\nsearch nodedns.svc.k8s.corp.example svc.k8s.corp.example k8s.corp.example corp.example eu.corp.example",
			Resolver{Nameservers: addrs("10.0.0.10", "fd00::a"), Domain: "k8s.corp.example", HostSearches: []string{"corp.example", "eu.corp.example"}, Known: true}, ""},
		"root search is none": {"search nodedns.svc.cluster.local svc.cluster.local cluster.local .\n",
			Resolver{Domain: "cluster.local", Known: true}, ""},
		"the last search line counts": {"search a b c\nsearch nodedns.svc.cluster.local svc.cluster.local cluster.local\n",
			Resolver{Domain: "cluster.local", Known: true}, ""},
		"another namespace":    {"search other.svc.cluster.local svc.cluster.local cluster.local\n", Resolver{}, "do not begin"},
		"a node's own":         {"search corp.example\nnameserver 192.0.2.1\n", Resolver{Nameservers: addrs("192.0.2.1")}, "fewer than three"},
		"three searches alike": {"search a.example b.example c.example\n", Resolver{}, "do not begin"},
		"empty":                {"", Resolver{}, "fewer than three"},
		"search the API refuses": {"search nodedns.svc.cluster.local svc.cluster.local cluster.local my_corp.example\n",
			Resolver{Domain: "cluster.local"}, "my_corp.example"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problem := ReadResolvConf(tt.text, "nodedns")
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if (problem == "") != (tt.problem == "") || !strings.Contains(problem, tt.problem) {
				t.Errorf("problem %q, want %q", problem, tt.problem)
			}
		})
	}
}

const ownResolvConf = "search nodedns.svc.cluster.local svc.cluster.local cluster.local\nnameserver %\n"

func dnsService(name, label string, ips ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system", Labels: map[string]string{"k8s-app": label}}}
	s.Spec.ClusterIPs = ips
	s.Spec.Ports = []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}, {Port: 53, Protocol: corev1.ProtocolTCP}}
	return s
}

func TestService(t *testing.T) {
	noDNS := dnsService("kube-dns", "kube-dns", "10.96.0.10")
	noDNS.Spec.Ports[0].Port = 5353
	for name, tt := range map[string]struct {
		nameserver string
		cfg        Config
		services   []*corev1.Service
		want       []netip.Addr
	}{
		"kubeadm":                     {"192.0.2.1", Config{}, []*corev1.Service{dnsService("kube-dns", "kube-dns", "10.96.0.10")}, addrs("10.96.0.10")},
		"kubespray":                   {"192.0.2.1", Config{}, []*corev1.Service{dnsService("coredns", "", "10.233.0.3")}, addrs("10.233.0.3")},
		"by label":                    {"192.0.2.1", Config{}, []*corev1.Service{dnsService("dns", "kube-dns", "10.96.0.10")}, addrs("10.96.0.10")},
		"dual stack":                  {"192.0.2.1", Config{}, []*corev1.Service{dnsService("kube-dns", "kube-dns", "10.96.0.10", "fd00::a")}, addrs("10.96.0.10", "fd00::a")},
		"upstream is not it":          {"192.0.2.1", Config{}, []*corev1.Service{dnsService("kube-dns-upstream", "kube-dns", "10.96.0.11")}, nil},
		"upstream beside it":          {"192.0.2.1", Config{}, []*corev1.Service{dnsService("kube-dns-upstream", "kube-dns", "10.96.0.11"), dnsService("kube-dns", "kube-dns", "10.96.0.10")}, addrs("10.96.0.10")},
		"name before label":           {"192.0.2.1", Config{}, []*corev1.Service{dnsService("a", "kube-dns", "10.96.0.9"), dnsService("coredns", "", "10.96.0.10")}, addrs("10.96.0.10")},
		"what kubelet hands out":      {"10.96.0.9", Config{}, []*corev1.Service{dnsService("a", "kube-dns", "10.96.0.9"), dnsService("kube-dns", "kube-dns", "10.96.0.10")}, addrs("10.96.0.9")},
		"two with nothing to choose":  {"192.0.2.1", Config{}, []*corev1.Service{dnsService("a", "kube-dns", "10.96.0.9"), dnsService("b", "kube-dns", "10.96.0.10")}, nil},
		"headless":                    {"192.0.2.1", Config{}, []*corev1.Service{dnsService("kube-dns", "kube-dns", "None")}, nil},
		"not DNS":                     {"192.0.2.1", Config{}, []*corev1.Service{noDNS}, nil},
		"none":                        {"192.0.2.1", Config{}, nil, nil},
		"another":                     {"192.0.2.1", Config{}, []*corev1.Service{dnsService("metrics", "metrics", "10.96.0.7")}, nil},
		"named by flag":               {"192.0.2.1", Config{Service: "mine"}, []*corev1.Service{dnsService("mine", "", "10.96.0.8"), dnsService("kube-dns", "kube-dns", "10.96.0.10")}, addrs("10.96.0.8")},
		"address by flag":             {"192.0.2.1", Config{ClusterIPs: addrs("10.0.0.1")}, []*corev1.Service{dnsService("kube-dns", "kube-dns", "10.96.0.10")}, addrs("10.0.0.1")},
		"local address is no way out": {"192.0.2.1", Config{}, []*corev1.Service{dnsService("kube-dns", "kube-dns", "169.254.25.10")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tt.cfg.LocalIPs = addrs("169.254.25.10")
			tt.cfg.ResolvConf = strings.ReplaceAll(ownResolvConf, "%", tt.nameserver)
			tt.cfg.Namespace = "nodedns"
			d, err := New(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range tt.services {
				d.SetService(s)
			}
			if diff := cmp.Diff(tt.want, d.Cluster().ClusterIPs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if (d.Missing() == "") != (tt.want != nil) {
				t.Errorf("missing: %q", d.Missing())
			}
		})
	}
}

func TestServiceIsWatched(t *testing.T) {
	d, err := New(Config{LocalIPs: addrs("169.254.25.10"), Domain: "cluster.local", HostSearches: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	d.SetService(dnsService("kube-dns", "kube-dns", "10.96.0.10"))
	d.SetService(dnsService("kube-dns", "kube-dns", "10.96.0.20"))
	if got := d.Cluster().ClusterIPs; len(got) != 1 || got[0].String() != "10.96.0.20" {
		t.Errorf("after a change: %v", got)
	}
	if !d.Cluster().HostSearchesKnown || d.Missing() != "" {
		t.Errorf("flags did not suffice: %s", d.Missing())
	}
	d.SetService(dnsService("kube-dns", "kube-dns", "None"))
	if got := d.Cluster().ClusterIPs; got != nil {
		t.Errorf("after it became headless: %v", got)
	}
	d.SetService(dnsService("kube-dns", "kube-dns", "10.96.0.20"))
	d.DeleteService("kube-dns")
	if got := d.Cluster().ClusterIPs; got != nil {
		t.Errorf("after deletion: %v", got)
	}
}

func TestConfigValidate(t *testing.T) {
	local := addrs("169.254.25.10")
	for name, bad := range map[string]Config{
		"no local address":     {},
		"unspecified":          {LocalIPs: addrs("0.0.0.0")},
		"loopback":             {LocalIPs: addrs("127.0.0.1")},
		"two of a family":      {LocalIPs: addrs("169.254.25.10", "169.254.25.11")},
		"cluster DNS is local": {LocalIPs: local, ClusterIPs: local},
		"domain":               {LocalIPs: local, Domain: "Cluster.Local"},
		"search":               {LocalIPs: local, HostSearches: []string{"a b"}},
	} {
		if bad.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
