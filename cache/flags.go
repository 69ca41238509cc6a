package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/nodedns/nodedns/cache/internal/node"
)

// options are the checked flags.
type options struct {
	// the incumbent's flags
	localIPs       []netip.Addr
	setupInterface bool
	interfaceName  string
	setupRules     bool
	conf           string // file of -conf, else of -corefile
	base           string
	kubeDNSDir     string
	upstreamSvc    string
	dnsPort        uint16
	healthPort     uint16
	metricsListen  string
	syncInterval   time.Duration
	pidFile        string
	reloadSignal   bool

	// our own
	mode            node.Mode // empty: ask kube-proxy
	modeAt          []string
	clusterDNS      []netip.Addr
	noClusterDNS    bool
	clusterUpstream []netip.Addr
	clusterDomain   string
	resolvConf      string
	guard           node.Level
	notrack         bool
	flavour         node.Flavour
	lease           time.Duration
	teardown        node.Leave
	memoryLimit     int64 // bytes; autoMemory: by the container's limit; 0: none
	drain           time.Duration
	wait            time.Duration
	logLevel        slog.Level
	logJSON         bool
	stay            bool
	version         bool

	set  map[string]bool // flags that were given
	args []string        // what follows the flags
}

// managesNode says whether this process sets up the node, or only answers questions.
func (o *options) managesNode() bool { return o.setupInterface || o.setupRules }

var errHelp = errors.New("help was asked for")

// Where the incumbent looks for its files.
const (
	defaultBase       = "/etc/coredns/Corefile.base"
	defaultCorefile   = "/etc/Corefile"
	defaultKubeDNSDir = "/etc/kube-dns"
	defaultLocalIP    = "169.254.25.10"
)

// flags are the flags as text, before they are checked.
type flags struct {
	localIP, iface, base, corefile, conf, kubeDNS, upstreamSvc, dnsPort, healthPort, metricsListen, syncInterval, pidFile string
	setupInterface, setupRules, skipTeardown, reloadSignal, notrack, stay, version                                        bool
	mode, modeAt, clusterDNS, clusterUpstream, clusterDomain, resolvConf, guard, flavour, teardown, memory, level, format string
	lease, drain, wait                                                                                                    time.Duration
}

// newFlagSet declares the flags. The first group keeps the names, meanings and defaults of the incumbent.
func newFlagSet() (*flag.FlagSet, *flags) {
	f := &flags{}
	fs := flag.NewFlagSet("nodedns-cache", flag.ContinueOnError)
	fs.StringVar(&f.localIP, "localip", defaultLocalIP, "own addresses, separated by commas")
	fs.BoolVar(&f.setupInterface, "setupinterface", true, "set up the interface and its addresses")
	fs.StringVar(&f.iface, "interfacename", node.DefaultLink, "name of the interface")
	fs.BoolVar(&f.setupRules, "setupiptables", true, "set up the rules, the guard and the backstop")
	fs.StringVar(&f.conf, "conf", "", "Corefile, used when -basecorefile does not exist; default: that of -corefile")
	fs.StringVar(&f.corefile, "corefile", defaultCorefile, "another name of -conf, which wins; nothing is written to it")
	fs.StringVar(&f.base, "basecorefile", defaultBase, "Corefile with placeholders; goes before -conf when it exists")
	fs.StringVar(&f.kubeDNS, "kubednscm", "", "directory of the mounted ConfigMap kube-dns (stubDomains, upstreamNameservers); default: "+defaultKubeDNSDir+" if it exists")
	fs.StringVar(&f.upstreamSvc, "upstreamsvc", "", "Service of this namespace that cluster names go to, by its variable NAME_SERVICE_HOST; default: kube-dns-upstream, in IPVS mode the cluster DNS itself")
	fs.StringVar(&f.dnsPort, "dns.port", "53", "port of zones that name none, of stub domains and of the rules")
	fs.StringVar(&f.healthPort, "health-port", "", "port of /health in the rules; default: that of the Corefile")
	fs.StringVar(&f.metricsListen, "metrics-listen-address", "0.0.0.0:9353", "address where coredns_nodecache_setup_errors_total is served alone; empty: nowhere")
	fs.BoolVar(&f.skipTeardown, "skipteardown", false, "the same as -teardown=none")
	fs.StringVar(&f.syncInterval, "syncinterval", "60", "longest time between two full checks of interface and rules, in seconds or as a duration")
	fs.StringVar(&f.pidFile, "pidfile", "", "file to write the process ID to")
	fs.BoolVar(&f.reloadSignal, "reloadwithsignal", false, "watch the files also when no block has reload (SIGUSR1 and SIGHUP reload in any case)")

	fs.StringVar(&f.mode, "mode", "auto", "proxy mode of kube-proxy: auto, ipvs, iptables or nftables; auto asks kube-proxy")
	fs.StringVar(&f.modeAt, "kube-proxy", strings.Join(node.DefaultModeAt(), ","), "addresses of kube-proxy's metrics server, separated by commas")
	fs.StringVar(&f.clusterDNS, "cluster-dns", "", "ClusterIP of the cluster DNS (one a family), or none; default: KUBE_DNS_SERVICE_HOST, COREDNS_SERVICE_HOST")
	fs.StringVar(&f.clusterUpstream, "cluster-upstream", "", "addresses that cluster names go to, instead of -upstreamsvc")
	fs.StringVar(&f.clusterDomain, "cluster-domain", "cluster.local", "value of __PILLAR__DNS__DOMAIN__")
	fs.StringVar(&f.resolvConf, "resolv-conf", "/etc/resolv.conf", "value of __PILLAR__UPSTREAM__SERVERS__ when the ConfigMap kube-dns names none")
	fs.StringVar(&f.guard, "guard", "auto", "best guard level to try: auto, owner, socket, lease or plain")
	fs.BoolVar(&f.notrack, "notrack", true, "take DNS traffic to the cache out of connection tracking")
	fs.StringVar(&f.flavour, "iptables", "auto", "kernel interface of iptables: auto (as kube-proxy), legacy or nft")
	fs.DurationVar(&f.lease, "lease", 3*time.Second, "how long the node stays in service after the last proof that the cache answers")
	fs.StringVar(&f.teardown, "teardown", "mode", "what is removed at exit: mode (what injected Pods need stays), all or none")
	fs.StringVar(&f.memory, "memory-limit", "auto", "soft limit of memory in bytes, also with Ki, Mi, Gi; auto: nine tenths of the container's limit; 0: none")
	fs.DurationVar(&f.drain, "drain", 5*time.Second, "longest time to go on answering after SIGTERM")
	fs.DurationVar(&f.wait, "wait", 30*time.Second, "longest time to wait at start for a missing Corefile and for kube-proxy")
	fs.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&f.format, "log-format", "text", "text or json")
	fs.BoolVar(&f.stay, "stay", false, "of cleanup: when everything is removed, wait for a signal instead of ending, so that a Pod of a DaemonSet is ready then")
	fs.BoolVar(&f.version, "version", false, "print the version and exit")
	return fs, f
}

// parseFlags reads and checks all flags; the error joins everything that is wrong.
func parseFlags(args []string, env environment) (*options, error) {
	fs, f := newFlagSet()
	fs.SetOutput(env.stderr)
	fs.Usage = func() {
		fmt.Fprint(env.stderr, "Usage: nodedns-cache [flags]                serve\n       nodedns-cache check [flags] FILE     validate a Corefile and print what it means\n"+
			"       nodedns-cache cleanup [flags]        remove everything this program left on the node\n       nodedns-cache version\n\nFlags:\n")
		fs.PrintDefaults()
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil, errHelp
	case err != nil:
		return nil, err
	}
	o := &options{set: make(map[string]bool), args: fs.Args()}
	fs.Visit(func(fl *flag.Flag) { o.set[fl.Name] = true })
	return o, f.check(o)
}

func (f *flags) check(o *options) error {
	var errs []error
	fail := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("-%s: %w", name, fmt.Errorf(format, args...)))
	}
	o.setupInterface, o.setupRules, o.reloadSignal, o.notrack, o.stay, o.version = f.setupInterface, f.setupRules, f.reloadSignal, f.notrack, f.stay, f.version
	o.interfaceName, o.base, o.upstreamSvc, o.pidFile = f.iface, f.base, f.upstreamSvc, f.pidFile
	o.clusterDomain, o.resolvConf, o.kubeDNSDir = f.clusterDomain, f.resolvConf, f.kubeDNS
	if o.conf = f.conf; o.conf == "" {
		o.conf = f.corefile
	}
	var err error
	if o.localIPs, err = parseLocalIPs(f.localIP); err != nil {
		fail("localip", "%w", err)
	}
	o.dnsPort = parsePort(f.dnsPort, func(err error) { fail("dns.port", "%w", err) })
	if f.healthPort != "" {
		o.healthPort = parsePort(f.healthPort, func(err error) { fail("health-port", "%w", err) })
	}
	if o.metricsListen = f.metricsListen; o.metricsListen != "" {
		if _, _, err := net.SplitHostPort(o.metricsListen); err != nil {
			fail("metrics-listen-address", "%q; allowed: IP:port, :port or nothing", o.metricsListen)
		}
	}
	if o.syncInterval, err = secondsOrDuration(f.syncInterval); err != nil {
		fail("syncinterval", "%w", err)
	}
	if f.mode != "auto" {
		if o.mode, err = node.ParseMode(f.mode); err != nil {
			fail("mode", "%q; allowed: auto, ipvs, iptables, nftables", f.mode)
		}
	}
	for a := range strings.SplitSeq(f.modeAt, ",") {
		if a = strings.TrimSpace(a); a != "" {
			o.modeAt = append(o.modeAt, a)
		}
	}
	if o.noClusterDNS = f.clusterDNS == "none"; f.clusterDNS != "" && !o.noClusterDNS {
		if o.clusterDNS, err = node.ParseAddrs(f.clusterDNS); err != nil {
			fail("cluster-dns", "%w", err)
		}
	}
	if f.clusterUpstream != "" {
		if o.clusterUpstream, err = parseAddrs(f.clusterUpstream); err != nil {
			fail("cluster-upstream", "%w", err)
		}
	}
	if o.guard, err = node.ParseLevel(f.guard); err != nil {
		fail("guard", "%w", err)
	}
	if f.flavour != "auto" {
		if o.flavour = node.Flavour(f.flavour); o.flavour != node.Legacy && o.flavour != node.NFT {
			fail("iptables", "%q; allowed: auto, legacy, nft", f.flavour)
		}
	}
	if o.lease = f.lease; o.lease < time.Second || o.lease%time.Second != 0 {
		fail("lease", "%v; allowed: whole seconds, at least 1s", f.lease)
	}
	switch f.teardown {
	case "mode":
		o.teardown = node.LeaveByMode
	case "all":
		o.teardown = node.LeaveAll
	case "none":
		o.teardown = node.LeaveNothing
	default:
		fail("teardown", "%q; allowed: mode, all, none", f.teardown)
	}
	if f.skipTeardown {
		if o.set["teardown"] && o.teardown != node.LeaveNothing {
			fail("skipteardown", "contradicts -teardown=%s", f.teardown)
		}
		o.teardown = node.LeaveNothing
	}
	if o.memoryLimit, err = parseBytes(f.memory); err != nil {
		fail("memory-limit", "%w", err)
	}
	if o.drain = f.drain; o.drain <= 0 {
		fail("drain", "%v; allowed: more than 0", f.drain)
	}
	if o.wait = f.wait; o.wait < 0 {
		fail("wait", "%v; allowed: 0 and more", f.wait)
	}
	if err := o.logLevel.UnmarshalText([]byte(f.level)); err != nil {
		fail("log-level", "%q; allowed: debug, info, warn, error", f.level)
	}
	if o.logJSON = f.format == "json"; !o.logJSON && f.format != "text" {
		fail("log-format", "%q; allowed: text, json", f.format)
	}
	return errors.Join(errs...)
}
