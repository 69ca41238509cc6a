package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodedns/nodedns/e2e/load"
	"github.com/nodedns/nodedns/e2e/resolver"
)

// client is one load: who asks, over what, from where.
type client struct {
	name      string
	kind      string // raw, glibc, musl or go
	transport string // udp or tcp
	from      string // pod or host
	server    string // raw clients ask only this; the others what their resolv.conf says
	rate      int    // questions a second
}

// title is what the client is called in the matrix. An injected Pod is one that asks the local address in a cluster where
// others ask the ClusterIP.
func (c client) title() string {
	if c.name == "injected udp" {
		return c.kind + ", injected"
	}
	return c.kind
}

// baseline is the same load on a ClusterIP that no cache serves, at the same time: what it loses the machine loses.
const baseline = "plain udp"

// deadline is how long a question of any client waits: a program that gets its answer later has been without service.
const deadline = time.Second

// raws are the clients that ask server themselves. The network of User-Mode Linux loses packets by itself above 100
// questions a second, so all that ask at one time stay below that there.
func (r *rig) raws(server string) []client {
	udp, tcp := 60, 20
	if r.p.uml {
		udp, tcp = 25, 10
	}
	out := []client{
		{"pod udp", "raw", "udp", "pod", server, udp},
		{"host udp", "raw", "udp", "host", server, udp},
		{"pod tcp", "raw", "tcp", "pod", server, tcp},
		{"host tcp", "raw", "tcp", "host", server, tcp},
	}
	if r.cache == nil {
		return out
	}
	out = append(out, client{baseline, "raw", "udp", "pod", r.plain(), tcp * 2})
	if server == "10.96.0.10:53" {
		// Besides, a Pod that got the local address when the cluster's kube-proxy was in IPVS mode.
		out = append(out, client{"injected udp", "raw", "udp", "pod", "169.254.25.10:53", tcp})
	}
	return out
}

// resolvers are the clients that ask as programs do, by the resolv.conf that the webhook writes. musl has no TCP, and asks
// both nameservers at once.
func (r *rig) resolvers() []client {
	rate := 15
	if r.p.uml {
		rate = 7
	}
	var out []client
	for _, from := range []string{"pod", "host"} {
		for _, kind := range []string{"glibc", "musl", "go"} {
			out = append(out, client{kind + " " + from + " udp", kind, "udp", from, "", rate})
			if kind != "musl" {
				out = append(out, client{kind + " " + from + " tcp", kind, "tcp", from, "", rate})
			}
		}
	}
	return append(out, client{baseline, "raw", "udp", "pod", r.plain(), 2 * rate})
}

// plain is a ClusterIP of the cluster DNS that no cache serves.
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

// Names that clients ask. Those of the resolvers reach cluster DNS under another name if the cache asks for them, and the
// address then says so: a resolver does not tell who answered.
func rawNames() []string {
	return []string{"a.svc.cluster.local", "b.svc.cluster.local", "c.svc.cluster.local"}
}

func resolverNames() []string {
	return []string{"a.resolver.cluster.local.", "b.resolver.cluster.local.", "c.resolver.cluster.local."}
}

const (
	rewritten      = ".by-cache.cluster.local"
	addressPlain   = "192.0.2.1"
	addressByCache = "192.0.2.2"
)

func whoGave(address string) string {
	if address == addressByCache {
		return load.ByCache
	}
	return load.ByClusterDNS
}

// resolvConf writes what the webhook gives a Pod, and the option by which glibc and Go use TCP.
func (r *rig) resolvConf(t *testing.T, transport string) string {
	t.Helper()
	text := "nameserver 169.254.25.10\nnameserver 10.96.0.10\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5"
	if transport == "tcp" {
		text += " use-vc"
	}
	// Once, and in one step: another client may be mounting it, which fails if it is replaced meanwhile, or reading it, and Go's
	// takes an empty one for good if the rewritten one is as old.
	file := filepath.Join(r.dir, "resolv.conf."+transport)
	if have, err := os.ReadFile(file); err == nil && string(have) == text+"\n" {
		return file
	}
	if err := os.WriteFile(file+".new", []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	return file
}

// asking is a process with one client or several of a kind.
type asking struct {
	clients []client
	cmd     *exec.Cmd
	in      interface{ Close() error }
	out     *firstLine
}

// firstLine keeps what is written, and closes seen after the first line.
type firstLine struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	seen chan struct{}
	once sync.Once
}

func (f *firstLine) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf.Write(p)
	if bytes.Contains(f.buf.Bytes(), []byte("\n")) {
		f.once.Do(func() { close(f.seen) })
	}
	return len(p), nil
}

// begin starts the clients and returns when all of them ask. Raw ones of a namespace share a process: starting one takes
// long in User-Mode Linux.
func (r *rig) begin(t *testing.T, clients []client) []*asking {
	t.Helper()
	var all []*asking
	for _, from := range []string{"pod", "host"} {
		if raw := slices.DeleteFunc(slices.Clone(clients), func(c client) bool { return c.kind != "raw" || c.from != from }); len(raw) > 0 {
			all = append(all, r.process(t, raw, "", os.Args[0]))
		}
	}
	for _, c := range clients {
		args := resolver.Args(c.rate, deadline, resolverNames())
		switch c.kind {
		case "glibc", "musl":
			all = append(all, r.process(t, []client{c}, r.resolvConf(t, c.transport), append([]string{program("load-" + c.kind)}, args...)...))
		case "go":
			all = append(all, r.process(t, []client{c}, r.resolvConf(t, c.transport), os.Args[0]))
		}
	}
	for _, a := range all {
		select {
		case <-a.out.seen:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s does not begin to ask: %s", a.clients[0].name, &a.out.buf)
		}
	}
	return all
}

// process starts a program for clients of one namespace.
func (r *rig) process(t *testing.T, clients []client, resolvConf string, args ...string) *asking {
	t.Helper()
	if clients[0].from == "pod" {
		args = append([]string{"ip", "netns", "exec", "pod"}, args...)
	}
	if resolvConf != "" {
		args = append([]string{"unshare", "-m", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, resolvConf}, args...)
	}
	spec, err := json.Marshal(forAskers(clients))
	if err != nil {
		t.Fatal(err)
	}
	a := &asking{clients: clients, cmd: exec.Command(args[0], args[1:]...), out: &firstLine{seen: make(chan struct{})}}
	a.cmd.Env = append(os.Environ(), roleVar+"=load", loadVar+"="+string(spec))
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	a.cmd.Stdout, a.cmd.Stderr = a.out, t.Output()
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return a
}

// results waits for the end of the load and gives what happened.
func (a *asking) results(t *testing.T) []load.Result {
	t.Helper()
	if err := a.cmd.Wait(); err != nil {
		t.Fatalf("%s: %v", a.clients[0].name, err)
	}
	c := a.clients[0]
	if c.kind == "glibc" || c.kind == "musl" {
		res, err := resolver.Parse(a.out.buf.Bytes(), load.Config{Network: c.transport, Rate: c.rate}, whoGave)
		if err != nil {
			t.Fatal(err)
		}
		return []load.Result{res}
	}
	var res []load.Result
	_, text, _ := strings.Cut(a.out.buf.String(), "\n")
	if err := json.Unmarshal([]byte(text), &res); err != nil || len(res) != len(a.clients) {
		t.Fatalf("%s: %v: %s", c.name, err, text)
	}
	return res
}

// during runs do while clients ask, and gives what became of each client's questions.
func (r *rig) during(t *testing.T, clients []client, do func()) map[string]load.Result {
	t.Helper()
	all := r.begin(t, clients)
	time.Sleep(300 * time.Millisecond)
	do()
	time.Sleep(500 * time.Millisecond)
	out := map[string]load.Result{}
	for _, a := range all {
		if err := a.in.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range all {
		for i, res := range a.results(t) {
			out[a.clients[i].name] = res
		}
	}
	return out
}

// loadVar tells a process in the role of clients what to ask.
const loadVar = "NODE_TEST_LOAD"

// asker is what such a process must know of a client.
type asker struct {
	Server, Network string
	Rate            int
}

func forAskers(clients []client) []asker {
	var out []asker
	for _, c := range clients {
		out = append(out, asker{c.server, c.transport, c.rate})
	}
	return out
}

// askLoad asks until standard input ends and prints what happened to each client.
func askLoad() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	var all []asker
	if err := json.Unmarshal([]byte(os.Getenv(loadVar)), &all); err != nil {
		return err
	}
	results, errs := make([]load.Result, len(all)), make([]error, len(all))
	fmt.Println(resolver.Asking)
	var wg sync.WaitGroup
	for i, a := range all {
		cfg := load.Config{Network: a.Network, Rate: a.Rate, Deadline: deadline, Limit: 3 * time.Minute, Names: rawNames()}
		if a.Server == "" {
			cfg.Names, cfg.Ask = resolverNames(), askGo
		} else {
			cfg.Server = netip.MustParseAddrPort(a.Server)
		}
		wg.Go(func() { results[i], errs[i] = load.Run(ctx, cfg) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return err
		}
		results[i].Answers = nil
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

// askGo asks Go's own resolver.
func askGo(ctx context.Context, name string) (string, error) {
	list, err := (&net.Resolver{PreferGo: true}).LookupNetIP(ctx, "ip4", name)
	if err != nil {
		return "", err
	}
	return whoGave(list[0].String()), nil
}

// askOnce asks a server one question and says who answered.
func askOnce(server, name string) (by string, err error) {
	r, err := load.Run(context.Background(), load.Config{
		Server: netip.MustParseAddrPort(server), Network: "udp", Names: []string{name}, Rate: 1, Deadline: deadline, Limit: deadline,
	})
	if err != nil {
		return "", err
	}
	if r.Failed > 0 {
		return "", fmt.Errorf("%s: %v", name, r.Errors)
	}
	return r.Answers[0].By, nil
}
