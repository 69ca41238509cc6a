package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/nodedns/nodedns/webhook/internal/discovery"
	"github.com/nodedns/nodedns/webhook/internal/poddns"
	"github.com/nodedns/nodedns/webhook/internal/readiness"
)

// options are the command line.
type options struct {
	listenAddress, metricsAddress, probeAddress string

	kubeconfig, namespace string

	localIP, clusterDNS, clusterDNSService, clusterDomain, hostSearches, resolvConf string

	defaultInjection, fallback, notReady string
	podOptIn, audit, networkPolicy       bool

	cacheNamespace, cacheSelector string
	readyOn, readyOff             float64
	replaceGrace                  time.Duration

	certMode, certFile, keyFile, caSecret, configuration, service, certHosts string
	caDuration, leafDuration, certOverlap                                    time.Duration

	startupTaint  string
	leaderElect   bool
	shutdownDelay time.Duration
	logLevel      slog.Level
	logFormat     string
}

const (
	certsSelfManaged = "self-managed"
	certsFiles       = "files"
)

// flagSet declares every flag; the reference and the README are made from it.
func flagSet(o *options, stderr io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet("nodedns-webhook", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintln(stderr, "nodedns-webhook [flags]                  serve\nnodedns-webhook report [-o json] [flags]  who is injected, who would be\n"+
			"nodedns-webhook uninstall-check [flags]   status 0 if no Pod has the local address\n\nflags:")
		fs.PrintDefaults()
	}
	fs.StringVar(&o.listenAddress, "listen-address", ":8443", "`address` for reviews from the API server (TLS)")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":8080", "`address` for metrics; empty: none")
	fs.StringVar(&o.probeAddress, "probe-address", ":8081", "`address` for /healthz and /readyz; empty: none")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`; empty: as kubectl finds it, in a Pod its service account")
	fs.StringVar(&o.namespace, "namespace", "nodedns", "own `namespace`, whose Pods are never touched")

	fs.StringVar(&o.localIP, "local-ip", "169.254.25.10", "`addresses` of the node caches, comma-separated, at most one for each IP family")
	fs.StringVar(&o.clusterDNS, "cluster-dns", "", "ClusterIP `addresses` of the cluster DNS, comma-separated; empty: discovered")
	fs.StringVar(&o.clusterDNSService, "cluster-dns-service", "", "`name` of the cluster DNS Service in kube-system; empty: found by label and well-known names")
	fs.StringVar(&o.clusterDomain, "cluster-domain", "", "cluster `domain`; empty: from resolv.conf")
	fs.StringVar(&o.hostSearches, "host-searches", "", "search `domains` of the nodes, comma-separated, or none; empty: from resolv.conf")
	fs.StringVar(&o.resolvConf, "resolv-conf", "/etc/resolv.conf", "`file` that kubelet wrote for this Pod with dnsPolicy ClusterFirst")

	fs.StringVar(&o.defaultInjection, "default-injection", poddns.Disabled, "enabled or disabled: what holds where no label says")
	fs.BoolVar(&o.podOptIn, "pod-opt-in", false, "let the Pod label "+poddns.InjectionLabel+"=enabled count where the namespace does not say enabled")
	fs.StringVar(&o.fallback, "fallback-nameserver", string(poddns.FallbackAlways), "always: cluster DNS is the second nameserver; auto: not where every cache is ready and its readiness probe asks for the backstop")
	fs.StringVar(&o.notReady, "not-ready", string(poddns.NotReadyLeave), "leave: Pods stay as they are while caches are not ready; cluster-ip: they get the cluster DNS explicitly")
	fs.BoolVar(&o.audit, "audit", false, "decide and count, but change and annotate nothing")
	fs.BoolVar(&o.networkPolicy, "network-policy", true, "skip Pods whose egress policies block the local address")

	fs.StringVar(&o.cacheNamespace, "cache-namespace", "kube-system", "`namespace` of the cache Pods")
	fs.StringVar(&o.cacheSelector, "cache-selector", "k8s-app=nodedns-cache", "label `selector` of the cache Pods")
	fs.Float64Var(&o.readyOn, "ready-on", 0.95, "`fraction` of nodes with a usable cache from which on Pods are injected")
	fs.Float64Var(&o.readyOff, "ready-off", 0.80, "`fraction` below which injecting stops")
	fs.DurationVar(&o.replaceGrace, "replace-grace", 5*time.Minute, "how long a node counts as usable while its cache is being replaced")

	fs.StringVar(&o.certMode, "certs", certsSelfManaged, "self-managed: own CA in a Secret, caBundle kept; files: -cert-file and -key-file, kept by somebody else")
	fs.StringVar(&o.certFile, "cert-file", "/certs/tls.crt", "certificate `file` (-certs=files)")
	fs.StringVar(&o.keyFile, "key-file", "/certs/tls.key", "key `file` (-certs=files)")
	fs.StringVar(&o.caSecret, "ca-secret", "nodedns-webhook-ca", "`name` of the Secret with the CA (-certs=self-managed)")
	fs.StringVar(&o.configuration, "webhook-configuration", "nodedns-webhook", "`name` of the MutatingWebhookConfiguration (-certs=self-managed)")
	fs.StringVar(&o.service, "service", "nodedns-webhook", "`name` of the own Service, for the certificate")
	fs.StringVar(&o.certHosts, "cert-hosts", "", "further `hosts` for the certificate, names or addresses, comma-separated")
	fs.DurationVar(&o.caDuration, "ca-duration", 365*24*time.Hour, "life of the CA (-certs=self-managed)")
	fs.DurationVar(&o.leafDuration, "cert-duration", 7*24*time.Hour, "life of the serving certificate (-certs=self-managed)")
	fs.DurationVar(&o.certOverlap, "cert-overlap", 30*time.Second, "how long a new CA is in the caBundle before its certificate is served (-certs=self-managed)")

	fs.StringVar(&o.startupTaint, "startup-taint", "", "`key` of the taint to take from a Node once its cache is ready, such as node-local-dns/not-ready; empty: none")
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "let one replica at a time write Events and remove taints; off: this one does")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay", 5*time.Second, "how long reviews are still taken after the signal to stop, until nobody sends any more")
	fs.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	fs.StringVar(&o.logFormat, "log-format", "text", "text or json")
	return fs
}

// parse reads and checks the command line.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flagSet(&o, stderr)
	if err := fs.Parse(args); err != nil {
		return options{}, err
	}
	if fs.NArg() > 0 {
		return options{}, fmt.Errorf("argument %q is not understood; see -help", fs.Arg(0))
	}
	return o, o.validate()
}

func (o options) policy() poddns.Policy {
	return poddns.Policy{
		OwnNamespace: o.namespace,
		Default:      o.defaultInjection == poddns.Enabled,
		PodOptIn:     o.podOptIn,
		Audit:        o.audit,
		Fallback:     poddns.Fallback(o.fallback),
		NotReady:     poddns.NotReady(o.notReady),
	}
}

func (o options) readiness() readiness.Config {
	grace := o.replaceGrace
	if grace == 0 {
		grace = -1 // on the command line zero means none
	}
	return readiness.Config{On: o.readyOn, Off: o.readyOff, Grace: grace}
}

// discovery turns the flags about the cluster's DNS into a checked Config; resolvConf is the text of the file.
func (o options) discovery(resolvConf string) (discovery.Config, error) {
	cfg := discovery.Config{Service: o.clusterDNSService, Domain: strings.TrimSuffix(o.clusterDomain, "."), ResolvConf: resolvConf, Namespace: o.namespace}
	var errs []error
	for _, list := range []struct {
		text string
		into *[]netip.Addr
	}{{o.localIP, &cfg.LocalIPs}, {o.clusterDNS, &cfg.ClusterIPs}} {
		for _, field := range listed(list.text) {
			ip, err := netip.ParseAddr(field)
			if err != nil {
				errs = append(errs, fmt.Errorf("%q is not an IP address", field))
				continue
			}
			*list.into = append(*list.into, ip.Unmap())
		}
	}
	switch {
	case o.hostSearches == "none":
		cfg.HostSearches = []string{}
	case o.hostSearches != "":
		cfg.HostSearches = listed(o.hostSearches)
	}
	if len(errs) == 0 {
		errs = append(errs, cfg.Validate())
	}
	return cfg, errors.Join(errs...)
}

// readResolvConf reads the file; a missing one is no error, for flags may say everything.
func (o options) readResolvConf(log *slog.Logger) string {
	text, err := os.ReadFile(o.resolvConf)
	if err != nil {
		log.Warn("reading the own resolv.conf", "error", err)
		return ""
	}
	return string(text)
}

// hosts are the names and addresses of the certificate; domain is the cluster's, empty if unknown.
func (o options) hosts(domain string) (names []string, ips []net.IP) {
	if domain == "" {
		domain = "cluster.local"
	}
	svc := o.service + "." + o.namespace + ".svc"
	names = []string{o.service, o.service + "." + o.namespace, svc, svc + "." + domain}
	for _, host := range listed(o.certHosts) {
		if ip := net.ParseIP(host); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, host)
		}
	}
	return names, ips
}

func listed(commaSeparated string) []string {
	return strings.FieldsFunc(commaSeparated, func(r rune) bool { return r == ',' || r == ' ' })
}
