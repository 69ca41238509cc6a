package poddns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodedns/nodedns/e2e/bedtest"
	"github.com/nodedns/nodedns/e2e/host"
)

// kubelet is the resolv.conf that kubelet writes: what it has from the node and the cluster for ClusterFirst, nothing
// for None, and the dnsConfig behind either (kubernetes pkg/kubelet/network/dns).
func kubelet(t *testing.T, object []byte, in Input) string {
	t.Helper()
	var pod struct {
		Spec struct {
			DNSPolicy string
			DNSConfig struct {
				Nameservers, Searches []string
				Options               []struct{ Name, Value string }
			}
		}
	}
	if err := json.Unmarshal(object, &pod); err != nil {
		t.Fatal(err)
	}
	var servers, searches []string
	options := map[string]string{}
	if pod.Spec.DNSPolicy != "None" {
		servers = []string{in.Cluster.ClusterIPs[0].String()}
		searches = append([]string{in.Namespace.Name + ".svc." + in.Cluster.Domain, "svc." + in.Cluster.Domain, in.Cluster.Domain}, in.Cluster.HostSearches...)
		options["ndots"] = "5"
	}
	servers = appendNew(servers, pod.Spec.DNSConfig.Nameservers...)
	searches = appendNew(searches, pod.Spec.DNSConfig.Searches...)
	for _, o := range pod.Spec.DNSConfig.Options {
		options[o.Name] = o.Value
	}
	text := "search " + strings.Join(searches, " ") + "\n"
	for _, s := range servers {
		text += "nameserver " + s + "\n"
	}
	for name, value := range options {
		text += "options " + strings.TrimSuffix(name+":"+value, ":") + "\n"
	}
	return text
}

// zone is what the one DNS server answers that stands for cache and cluster DNS alike.
func zone() map[string]string {
	return map[string]string{
		"api.shop.svc.cluster.local.":             "10.0.0.1",
		"db-0.db.shop.svc.cluster.local.":         "10.0.0.2",
		"kube-dns.kube-system.svc.cluster.local.": "10.0.0.3",
		"intranet.corp.example.":                  "10.0.0.4",
		"wiki.eu.corp.example.":                   "10.0.0.5",
		"old.apps.example.":                       "10.0.0.6",
		"www.example.org.":                        "10.0.0.7",
		"a.b.c.d.e.f.example.":                    "10.0.0.8",
		"api.example.":                            "10.0.0.9",
		"example.":                                "10.0.0.10",
	}
}

// A Pod resolves the same names before and after, by the resolvers of glibc and musl, and asks the same questions for
// them: of the cache in place of the cluster DNS.
func TestSameNamesBeforeAndAfter(t *testing.T) {
	bedtest.Require(t, host.Preflight(host.Needs{Root: true}))
	clients := compileClients(t)
	ns, asked := dnsNamespace(t)
	names := []string{
		"api", "api.shop", "api.shop.svc", "api.shop.svc.cluster.local", "api.shop.svc.cluster.local.", "db-0.db", "db-0.db.shop",
		"kube-dns.kube-system", "kube-dns.kube-system.svc", "intranet", "wiki.eu", "wiki", "intranet.corp.example", "old", "old.apps.example",
		"www.example.org", "www.example.org.", "a.b.c.d.e.f.example", "api.example", "example", "nothing", "nothing.shop", "nothing.example.org", "nothing.",
	}
	base := goldenInput{}.input(t)
	base.Cluster.HostSearches = []string{"corp.example", "eu.corp.example"}
	for _, tt := range []struct {
		name, spec string
		fallback   Fallback
	}{
		{"plain", `{}`, FallbackAlways},
		{"plain, cache alone", `{}`, FallbackAuto},
		{"ndots 1", `{"dnsConfig":{"options":[{"name":"ndots","value":"1"}]}}`, FallbackAlways},
		{"own searches", `{"dnsConfig":{"searches":["apps.example","corp.example"]}}`, FallbackAlways},
		{"own options", `{"dnsConfig":{"options":[{"name":"timeout","value":"1"},{"name":"attempts","value":"1"},{"name":"use-vc"}]}}`, FallbackAlways},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := base
			in.Policy.Fallback = tt.fallback
			object := []byte(`{"metadata":{},"spec":` + tt.spec + `}`)
			pod, err := Parse(object)
			if err != nil {
				t.Fatal(err)
			}
			patch := Patch(pod, Decide(pod, in))
			if patch == nil {
				t.Fatal("not injected")
			}
			before, after := kubelet(t, object, in), kubelet(t, apply(t, object, patch), in)
			if !strings.HasPrefix(after[strings.Index(after, "nameserver"):], "nameserver 169.254.25.10\n") {
				t.Fatalf("after:\n%s", after)
			}
			for client, program := range clients {
				asked.clear()
				was := lookup(t, ns, program, before, names)
				questions := asked.of(clusterDNS)
				if extra := asked.of(nodeCache); len(extra) > 0 || len(questions) < len(names) {
					t.Errorf("%s: before, the cache was asked %q and the cluster DNS %q", client, extra, questions)
				}
				asked.clear()
				is := lookup(t, ns, program, after, names)
				// musl asks all nameservers at once and goes on with the first answer: the other question may be under way.
				if err := host.Until(t.Context(), client+" to have asked the cache what it asked the cluster DNS", 2*time.Second, func(context.Context) error {
					if diff := cmp.Diff(questions, asked.of(nodeCache)); diff != "" {
						return errors.New("-before +after:\n" + diff)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				if extra := asked.of(clusterDNS); len(extra) > 0 && (client == "glibc" || tt.fallback == FallbackAuto) {
					t.Errorf("%s: after, the cluster DNS was asked %q", client, extra)
				}
				for i := range names {
					if was[i] != is[i] {
						t.Errorf("%s: before %q, after %q", client, was[i], is[i])
					}
				}
				// What must resolve and must not, so that two broken runs do not pass for equal.
				if !slices.Contains(is, "www.example.org 10.0.0.7") || !slices.Contains(is, "api.shop.svc.cluster.local 10.0.0.1") {
					t.Errorf("%s: %q", client, is)
				}
				if !slices.ContainsFunc(is, func(s string) bool { return strings.HasPrefix(s, "nothing.example.org error") }) {
					t.Errorf("%s resolves what does not exist: %q", client, is)
				}
			}
		})
	}
}

// lookup runs the client with a resolv.conf of its own and returns a line for each name.
func lookup(t *testing.T, ns *host.Namespace, program, resolvConf string, names []string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte(resolvConf), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "sh", "-c", `mount --bind "$1" /etc/resolv.conf && shift && exec "$@"`, "sh", file, program}, names...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError // of 1: some name did not resolve, as is meant
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(names) {
		t.Fatalf("%d lines for %d names:\n%s", len(lines), len(names), out.String())
	}
	return lines
}

func compileClients(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, compiler := range map[string]string{"glibc": "gcc", "musl": "musl-gcc"} {
		if _, err := exec.LookPath(compiler); err != nil {
			bedtest.Require(t, fmt.Errorf("the %s client needs %s: %w", name, compiler, err))
		}
		out[name] = filepath.Join(t.TempDir(), name)
		if text, err := exec.CommandContext(t.Context(), compiler, "-o", out[name], "../../../e2e/archive/lookup/lookup.c").CombinedOutput(); err != nil {
			t.Fatalf("compiling the %s client: %v\n%s", name, err, text)
		}
	}
	return out
}

const (
	nodeCache  = "169.254.25.10:53"
	clusterDNS = "10.96.0.10:53"
)

// record is what each address was asked.
type record struct {
	mu    sync.Mutex
	asked map[string]map[string]bool
}

func (r *record) note(address, question string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked[address] == nil {
		r.asked[address] = map[string]bool{}
	}
	r.asked[address][question] = true
}

func (r *record) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = map[string]map[string]bool{}
}

// of is what that address was asked, each once and in alphabetical order: the types of a name are asked at once.
func (r *record) of(address string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.asked[address]))
}

// dnsNamespace is a network namespace in which cache and cluster DNS answer, from the same zone.
func dnsNamespace(t *testing.T) (*host.Namespace, *record) {
	t.Helper()
	ns, err := host.NewNamespace()
	if err != nil {
		bedtest.Require(t, err)
	}
	t.Cleanup(ns.Close)
	for _, args := range [][]string{{"addr", "add", "169.254.25.10/32", "dev", "lo"}, {"addr", "add", "10.96.0.10/32", "dev", "lo"}} {
		if err := ns.Do(exec.CommandContext(t.Context(), "ip", args...).Run); err != nil {
			bedtest.Require(t, fmt.Errorf("ip %s: %w", strings.Join(args, " "), err))
		}
	}
	answers, asked := zone(), &record{asked: map[string]map[string]bool{}}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		asked.note(w.LocalAddr().String(), q.Question[0].Name+" "+dns.TypeToString[q.Question[0].Qtype])
		reply := new(dns.Msg)
		reply.SetReply(q)
		name := strings.ToLower(q.Question[0].Name)
		address, ok := answers[name]
		switch {
		case !ok:
			reply.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			reply.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.ParseIP(address)}}
		}
		if err := w.WriteMsg(reply); err != nil {
			t.Errorf("answering: %v", err)
		}
	})
	for _, address := range []string{nodeCache, clusterDNS} {
		server, tcp := &dns.Server{Handler: handler}, &dns.Server{Handler: handler}
		if server.PacketConn, err = ns.ListenPacket(t.Context(), "udp", address); err != nil {
			t.Fatal(err)
		}
		if tcp.Listener, err = ns.Listen(t.Context(), "tcp", address); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*dns.Server{server, tcp} {
			started := make(chan struct{})
			s.NotifyStartedFunc = func() { close(started) }
			go func() { _ = s.ActivateAndServe() }() // ends with Shutdown
			<-started
			t.Cleanup(func() { _ = s.Shutdown() })
		}
	}
	return ns, asked
}
