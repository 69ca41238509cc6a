package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodedns/nodedns/e2e/house"
)

// kubeProxyVar names the program of kube-proxy. The tiers build it; without it, the tests that need it are skipped.
const kubeProxyVar = "NODE_TEST_KUBE_PROXY"

// kubeProxyPath is where the program of kube-proxy should be.
func kubeProxyPath(t *testing.T) string {
	t.Helper()
	if p := os.Getenv(kubeProxyVar); p != "" {
		return p
	}
	p, err := filepath.Abs("../../../_out/bin/kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// findKubeProxy gives the program of kube-proxy where the tiers build it.
func findKubeProxy(t *testing.T) string {
	t.Helper()
	p := kubeProxyPath(t)
	if _, err := os.Stat(p); err != nil {
		skip(t, "needs kube-proxy: go run ./e2e/tiers -only netns,uml builds it")
	}
	return p
}

// serveAPI is as much of an API server as kube-proxy needs, for a cluster that never changes: a node, the two Services of
// the cluster DNS, and its two endpoints.
func serveAPI(addr string) error {
	service := func(name, ip string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"kube-system","uid":%q,"resourceVersion":"1"},"spec":{"type":"ClusterIP",
			"clusterIP":%q,"clusterIPs":[%[3]q],"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","sessionAffinity":"None","internalTrafficPolicy":"Cluster","ports":[
			{"name":"dns","protocol":"UDP","port":53,"targetPort":53},{"name":"dns-tcp","protocol":"TCP","port":53,"targetPort":53}]}}`, name, name, ip)
	}
	slice := func(service string) string {
		ready := `"conditions":{"ready":true,"serving":true,"terminating":false}`
		return fmt.Sprintf(`{"metadata":{"name":"%s-1","namespace":"kube-system","uid":"%[1]s-1","resourceVersion":"1","labels":{"kubernetes.io/service-name":%[1]q}},
			"addressType":"IPv4","endpoints":[{"addresses":["10.244.1.53"],%s},{"addresses":["10.244.1.54"],%[2]s}],
			"ports":[{"name":"dns","protocol":"UDP","port":53},{"name":"dns-tcp","protocol":"TCP","port":53}]}`, service, ready)
	}
	node := `{"metadata":{"name":"node","uid":"node","resourceVersion":"1"},"spec":{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"]},
		"status":{"addresses":[{"type":"InternalIP","address":"172.30.0.1"}]}}`
	mux := http.NewServeMux()
	serve := func(path, version, kind string, items ...string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { answerAPI(w, r, version, kind, items) })
	}
	serve("/api/v1/services", "v1", "Service", service("kube-dns", "10.96.0.10"), service("kube-dns-upstream", "10.96.0.11"))
	serve("/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice", slice("kube-dns"), slice("kube-dns-upstream"))
	serve("/api/v1/nodes", "v1", "Node", node)
	serve("/apis/networking.k8s.io/v1/servicecidrs", "networking.k8s.io/v1", "ServiceCIDR")
	mux.HandleFunc("GET /api/v1/nodes/node", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, typed(node, "v1", "Node"))
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }) // events
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("serving")
	return (&http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}).Serve(l)
}

// typed adds what an object in a list lacks.
func typed(object, version, kind string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s`, version, kind, strings.TrimPrefix(object, "{"))
}

// answerAPI answers a list or a watch, in which nothing ever happens.
func answerAPI(w http.ResponseWriter, r *http.Request, version, kind string, items []string) {
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	if q.Get("watch") == "" || q.Get("watch") == "false" || q.Get("watch") == "0" {
		fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"1"},"items":[%s]}`, version, kind, strings.Join(items, ","))
		return
	}
	event := func(what, object string) {
		var line bytes.Buffer
		if err := json.Compact(&line, []byte(fmt.Sprintf(`{"type":%q,"object":%s}`, what, object))); err != nil {
			panic(err)
		}
		fmt.Fprintln(w, line.String())
	}
	if q.Get("sendInitialEvents") == "true" {
		for _, item := range items {
			event("ADDED", typed(item, version, kind))
		}
		event("BOOKMARK", fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}`, version, kind))
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// kubeProxy is the real one, on the node of a rig.
type kubeProxy struct {
	program, dir, addr string
	path               string // a folder in which the plain iptables commands are those of the place's flavour
	cmd                *exec.Cmd
	done               chan error
}

// kubeProxyMetrics is where kube-proxy tells its mode.
const kubeProxyMetrics = "127.0.0.1:10249"

// newKubeProxy starts what stands in for the API server.
func newKubeProxy(t *testing.T, dir string, flavour Flavour) *kubeProxy {
	t.Helper()
	k := &kubeProxy{program: findKubeProxy(t), dir: dir, addr: "127.0.0.1:6443", path: t.TempDir()}
	multi, err := exec.LookPath("xtables-" + string(flavour) + "-multi")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		if err := os.Symlink(multi, filepath.Join(k.path, name)); err != nil {
			t.Fatal(err)
		}
	}
	api := exec.Command(os.Args[0], k.addr)
	api.Env = append(os.Environ(), roleVar+"=api")
	api.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	api.Stderr = t.Output()
	out, err := api.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Process.Kill(); _ = api.Wait() })
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if k.cmd != nil {
			k.stop(t)
		}
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(dir, "kube-proxy.log"))
			t.Logf("kube-proxy said:\n%s", b)
		}
	})
	return k
}

// start starts kube-proxy in a mode and waits until it has done its work once.
func (k *kubeProxy) start(t *testing.T, mode Mode) {
	t.Helper()
	config := fmt.Sprintf(`{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","mode":%q,"hostnameOverride":"node",
		"clusterCIDR":"10.244.0.0/16","ipvs":{"scheduler":"rr","syncPeriod":"5s","minSyncPeriod":"0s"},"conntrack":{"maxPerCore":0,"min":0,"tcpEstablishedTimeout":"0s","tcpCloseWaitTimeout":"0s"},
		"metricsBindAddress":%q,"healthzBindAddress":"127.0.0.1:10256","clientConnection":{"kubeconfig":%q,"contentType":"application/json","acceptContentTypes":"application/json"}}`,
		mode, kubeProxyMetrics, filepath.Join(k.dir, "kubeconfig"))
	kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"http://%s"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}],"current-context":"c"}`, k.addr)
	for name, text := range map[string]string{"kube-proxy.yaml": config, "kubeconfig": kubeconfig} {
		if err := os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.OpenFile(filepath.Join(k.dir, "kube-proxy.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	k.cmd = exec.Command(k.program, "--config="+filepath.Join(k.dir, "kube-proxy.yaml"), "--v=2")
	k.cmd.Env = append(os.Environ(), "PATH="+k.path+":"+os.Getenv("PATH"))
	k.cmd.Stdout, k.cmd.Stderr = log, log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func(cmd *exec.Cmd) { done <- cmd.Wait() }(k.cmd)
	k.done = done
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if strings.HasSuffix(house.Page(kubeProxyMetrics, "/proxyMode"), "\r\n\r\n"+string(mode)) && strings.Contains(house.Page("127.0.0.1:10256", "/healthz"), "200 OK") {
			return
		}
		select {
		case err := <-done:
			k.cmd = nil
			t.Fatalf("kube-proxy ended: %v", err)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("kube-proxy does not work in %s mode: %s", mode, house.Page("127.0.0.1:10256", "/healthz"))
		}
	}
}

// ready waits until kube-proxy has written rules of its mode: it says that it is well before it has.
func (k *kubeProxy) ready(t *testing.T, mode Mode) {
	t.Helper()
	look := map[Mode]string{
		IPVS:     "ipvsadm -Ln | grep -q 10.96.0.10:53",
		IPTables: "PATH=" + k.path + ":$PATH iptables -t nat -S KUBE-SERVICES | grep -q 10.96.0.10/32",
		NFTables: "nft list table ip kube-proxy | grep -q 10.96.0.10",
	}
	within(t, 30*time.Second, "done writing rules of "+string(mode)+" mode", func() bool {
		return exec.Command("sh", "-c", look[mode]).Run() == nil
	})
}

func (k *kubeProxy) stop(t *testing.T) {
	t.Helper()
	if err := k.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case <-k.done:
	case <-time.After(20 * time.Second):
		_ = k.cmd.Process.Kill()
		<-k.done
	}
	k.cmd = nil
}

// TestKernelKubeProxy has the real kube-proxy restart and change its mode under a running Pod that has 169.254.25.10 in
// its resolv.conf, with the cache alive and dead. A kernel with IPVS that also has nf_tables families is not to be had here,
// so one makes the first change and another the second.
func TestKernelKubeProxy(t *testing.T) {
	places := []place{{name: "iptables to nftables-0", flavour: NFT, kind: "ifb", mode: IPTables, guard: LevelOwner}}
	next := NFTables
	if os.Getenv(umlVar) != "" {
		places = []place{{name: "ipvs to iptables-0", flavour: Legacy, kind: kindOurs, uml: true, mode: IPVS, guard: LevelSocket}}
		next = IPTables
	}
	inKernelWithCache(t, places, func(t *testing.T, p place) {
		r := newRigWith(t, p, "true")
		k := newKubeProxy(t, r.dir, p.flavour)
		k.start(t, p.mode)
		// It says that it is well before it has done its work once.
		within(t, 30*time.Second, "led to cluster DNS by kube-proxy", func() bool {
			_, err := askOnce("10.96.0.11:53", rawNames()[0])
			return err == nil
		})
		r.to = "169.254.25.10:53"
		r.flags = []string{"-mode=auto", "-kube-proxy=" + kubeProxyMetrics, "-cluster-upstream=10.96.0.11"}
		r.start(t)
		for _, f := range proxyFaults(r, k, p.mode, next) {
			t.Run(f.name, func(t *testing.T) { r.fault(t, f, r.injected()) })
		}
	})
}

// injected are clients with the local address, and the plain ClusterIP beside them.
func (r *rig) injected() []client {
	all := r.raws("169.254.25.10:53")
	all[len(all)-1].server = "10.96.0.11:53"
	return all
}

// proxyFaults are in order: each begins in the mode in which the one before ended.
func proxyFaults(r *rig, k *kubeProxy, from, to Mode) []fault {
	pod, host := r.killed(1)
	change := func(t *testing.T, to Mode) {
		k.stop(t)
		k.start(t, to)
		k.ready(t, to)
	}
	// dead makes something happen while the cache is away.
	dead := func(do func(t *testing.T)) func(t *testing.T, r *rig) {
		return func(t *testing.T, r *rig) {
			r.kill(t)
			do(t)
			time.Sleep(time.Second)
			r.start(t)
		}
	}
	without := func(name string, do func(t *testing.T)) fault {
		return fault{name: name + ", cache dead", do: dead(do), pod: pod, host: host, tcp: pod, outage: afterLease, shaken: true}
	}
	return []fault{
		{name: "kube-proxy restarted", do: func(t *testing.T, _ *rig) { change(t, from) }, shaken: true},
		without("kube-proxy restarted", func(t *testing.T) { change(t, from) }),
		{name: "mode changed to " + string(to), shaken: true, do: func(t *testing.T, r *rig) {
			change(t, to)
			r.within(15*time.Second, "aware of the change to "+string(to), func() bool {
				return bytes.Contains(r.log(t), []byte("kube-proxy changed its mode"))
			})
		}},
		without("mode changed back to "+string(from), func(t *testing.T) { change(t, from) }),
		without("mode changed to "+string(to), func(t *testing.T) { change(t, to) }),
	}
}
