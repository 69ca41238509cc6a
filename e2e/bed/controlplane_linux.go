package bed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

// stopGrace is how long a program of the control plane may take to end when asked.
const stopGrace = 3 * time.Second

// A ControlPlane is a running control plane. Stop it.
type ControlPlane struct {
	cfg  Config
	bin  string
	ws   *host.Workspace
	ns   *host.Namespace
	keys *keys

	mu     sync.Mutex
	etcd   *host.Process
	api    *host.Process
	second *host.Process
	kcm    *host.Process
	sched  *host.Process
	others []*host.Process
	relays []*relay
	once   sync.Once
}

// StartControlPlane builds what is not built yet, starts a control plane and returns when it answers. What was started
// is stopped again when it fails. ctx bounds the start only.
func StartControlPlane(ctx context.Context, cfg Config) (*ControlPlane, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	if err := host.Preflight(host.Needs{Root: true, Memory: 1200, Disk: 300, Dir: os.TempDir()}); err != nil {
		return nil, fmt.Errorf("this machine cannot run a control plane: %w", err)
	}
	bin, err := parts.Build(ctx, cfg.Console, parts.ControlPlane())
	if err != nil {
		return nil, err
	}
	if cfg.Name == "" {
		cfg.Name = "cp"
	}
	ws, err := host.NewWorkspace(cfg.Console, cfg.Name)
	if err != nil {
		return nil, err
	}
	cp := &ControlPlane{cfg: cfg, bin: bin, ws: ws}
	if err := cp.start(ctx); err != nil {
		cp.Stop()
		return nil, err
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context) (err error) {
	begin := time.Now()
	if cp.ns, err = host.NewNamespace(); err != nil {
		return err
	}
	if err := cp.ns.Do(func() error { return network(cp.cfg.Nodes) }); err != nil {
		return err
	}
	relay, err := newRelay(ctx, listenHost, cp.dialAPI)
	if err != nil {
		return err
	}
	cp.relays = append(cp.relays, relay)
	if cp.keys, err = writeKeys(cp.ws, relay.addr()); err != nil {
		return err
	}
	if err := cp.startEtcd(ctx); err != nil {
		return err
	}
	if err := cp.StartAPIServer(ctx); err != nil {
		return err
	}
	if !cp.cfg.APIServerOnly {
		if err := cp.startControllers(ctx); err != nil {
			return err
		}
	}
	cp.cfg.Console.Step("control plane is up (%.1fs); its logs are in %s", time.Since(begin).Seconds(), cp.ws.Path())
	return nil
}

// Stop ends everything that was started in the control plane's namespace, in reverse order, and removes the run folder.
func (cp *ControlPlane) Stop() {
	cp.once.Do(func() {
		cp.mu.Lock()
		defer cp.mu.Unlock()
		for _, p := range cp.others {
			p.Stop(stopGrace)
		}
		for _, r := range cp.relays {
			r.close()
		}
		for _, p := range []*host.Process{cp.sched, cp.kcm} {
			p.Stop(0) // they keep nothing that a clean end would save
		}
		cp.second.Stop(0)
		cp.api.Stop(0)
		cp.etcd.Stop(0)
		if cp.ns != nil {
			cp.ns.Close()
		}
		cp.ws.Close()
	})
}

// Kubeconfig is the path of an administrator's kubeconfig for programs on the host.
func (cp *ControlPlane) Kubeconfig() string { return cp.keys.outside }

// InnerKubeconfig is the same for programs inside the control plane's namespace and on the nodes.
func (cp *ControlPlane) InnerKubeconfig() string { return cp.keys.inside }

// RESTConfig is an administrator's configuration for client-go in this process, without client-side rate limits.
func (cp *ControlPlane) RESTConfig() *rest.Config { return cp.keys.restConfig() }

// Client returns an administrator's client.
func (cp *ControlPlane) Client() (*kubernetes.Clientset, error) {
	c, err := kubernetes.NewForConfig(cp.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return c, nil
}

// Namespace is the network namespace of the control plane.
func (cp *ControlPlane) Namespace() *host.Namespace { return cp.ns }

// Workspace is the run folder; logs are <program>.log in it.
func (cp *ControlPlane) Workspace() *host.Workspace { return cp.ws }

// Program is the path of a program that was built for the test bed, such as kubectl.
func (cp *ControlPlane) Program(name string) string { return filepath.Join(cp.bin, name) }

// AuditLog is the path of the audit log, one JSON event a line (Config.Audit).
func (cp *ControlPlane) AuditLog() string { return cp.ws.Path("audit.log") }

// Listen opens a listener inside the namespace, which the API server reaches at its address.
func (cp *ControlPlane) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return cp.ns.Listen(ctx, network, address)
}

// Start starts a program inside the namespace. Stop ends it too.
func (cp *ControlPlane) Start(c host.Command) (*host.Process, error) {
	c.Namespace = cp.ns
	if c.Log == "" {
		c.Log = cp.ws.Path(c.Name + ".log")
	}
	p, err := host.Start(c)
	if err != nil {
		return nil, err
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.others = append(cp.others, p)
	return p, nil
}

// Publish makes a TCP server that listens on the host reachable from inside the namespace, and returns the address to
// use there.
func (cp *ControlPlane) Publish(ctx context.Context, address string) (inside string, err error) {
	r, err := newRelay(ctx, cp.ns.Listen, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	})
	if err != nil {
		return "", err
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.relays = append(cp.relays, r)
	return r.addr(), nil
}

func (cp *ControlPlane) dialAPI(ctx context.Context) (net.Conn, error) {
	return cp.ns.Dial(ctx, "tcp", net.JoinHostPort(ControlPlaneIP, fmt.Sprint(apiPort)))
}

func (cp *ControlPlane) startEtcd(ctx context.Context) (err error) {
	const client = "http://127.0.0.1:2379"
	cp.etcd, err = host.Start(host.Command{
		Name: "etcd", Path: cp.Program("etcd"), Log: cp.ws.Path("etcd.log"), Namespace: cp.ns,
		Args: []string{
			"--data-dir=" + cp.ws.Path("etcd"), "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=http://127.0.0.1:2380", "--log-level=warn",
			"--unsafe-no-fsync", // the data need not survive this machine
		},
	})
	if err != nil {
		return err
	}
	return host.Until(ctx, "etcd", 30*time.Second, func(ctx context.Context) error {
		c, err := cp.ns.Dial(ctx, "tcp", "127.0.0.1:2379")
		if err == nil {
			c.Close()
		}
		return err
	}, cp.etcd)
}

// StartAPIServer starts the API server, which StartControlPlane has done already; it is for tests that stopped it.
func (cp *ControlPlane) StartAPIServer(ctx context.Context) error {
	args := cp.apiServerArgs(apiPort)
	if cp.cfg.Audit {
		policy := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"
		if err := os.WriteFile(cp.ws.Path("audit.yaml"), []byte(policy), 0o600); err != nil {
			return fmt.Errorf("writing the audit policy: %w", err)
		}
		args = append(args, "--audit-policy-file="+cp.ws.Path("audit.yaml"), "--audit-log-path="+cp.AuditLog())
	}
	p, err := cp.startAPIServer(ctx, "kube-apiserver", args, cp.RESTConfig())
	cp.mu.Lock()
	cp.api = p
	cp.mu.Unlock()
	return err
}

// apiServerArgs are the arguments of an API server at a port of the control plane's address.
func (cp *ControlPlane) apiServerArgs(port int) []string {
	k := cp.keys
	args := []string{
		"--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--advertise-address=" + ControlPlaneIP,
		fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file=" + k.file("apiserver.crt"), "--tls-private-key-file=" + k.file("apiserver.key"),
		"--client-ca-file=" + k.file("ca.crt"),
		"--kubelet-client-certificate=" + k.file("admin.crt"), "--kubelet-client-key=" + k.file("admin.key"),
		"--kubelet-certificate-authority=" + k.file("ca.crt"),
		"--kubelet-preferred-address-types=InternalIP", // nothing resolves node names here
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + k.file("sa.pub"), "--service-account-signing-key-file=" + k.file("sa.key"),
		"--service-cluster-ip-range=" + ServiceCIDR,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--enable-aggregator-routing=true", // webhooks are called at their Pods: no kube-proxy runs here
		"--profiling=false", "--v=1",
	}
	return append(args, cp.cfg.APIServerArgs...)
}

// startAPIServer starts an API server and waits until it answers config. The process is returned even if it never did.
func (cp *ControlPlane) startAPIServer(ctx context.Context, name string, args []string, config *rest.Config) (*host.Process, error) {
	p, err := host.Start(host.Command{
		Name: name, Path: cp.Program("kube-apiserver"), Log: cp.ws.Path(name + ".log"), Namespace: cp.ns, Args: args,
	})
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return p, fmt.Errorf("making a client: %w", err)
	}
	return p, host.Until(ctx, name, 90*time.Second, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		b, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err != nil {
			return errors.Join(err, errors.New(strings.TrimSpace(string(b))))
		}
		return nil
	}, p, cp.etcd)
}

// StopAPIServer ends the API server; StartAPIServer brings it back with all its objects.
func (cp *ControlPlane) StopAPIServer() {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.api.Stop(stopGrace)
}

func (cp *ControlPlane) startControllers(ctx context.Context) (err error) {
	k := cp.keys
	identity := func(name string) []string {
		c := "=" + k.file(name+".kubeconfig")
		return []string{
			"--kubeconfig" + c, "--authentication-kubeconfig" + c, "--authorization-kubeconfig" + c,
			"--leader-elect=false", "--bind-address=127.0.0.1", "--v=1",
		}
	}
	cp.kcm, err = host.Start(host.Command{
		Name: "kube-controller-manager", Path: cp.Program("kube-controller-manager"), Namespace: cp.ns,
		Log: cp.ws.Path("kube-controller-manager.log"),
		Args: append(append(identity("controller-manager"),
			"--service-account-private-key-file="+k.file("sa.key"), "--root-ca-file="+k.file("ca.crt"),
			"--use-service-account-credentials=true", "--cluster-cidr="+PodCIDR, "--allocate-node-cidrs=false",
		), cp.cfg.ControllerArgs...),
	})
	if err != nil {
		return err
	}
	cp.sched, err = host.Start(host.Command{
		Name: "kube-scheduler", Path: cp.Program("kube-scheduler"), Namespace: cp.ns,
		Log: cp.ws.Path("kube-scheduler.log"), Args: identity("scheduler"),
	})
	if err != nil {
		return err
	}
	return cp.defaultAccount(ctx)
}
