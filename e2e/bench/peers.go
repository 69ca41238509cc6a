package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// A peer is one row: how to configure and start a server that listens on
// serverAddr, forwards cluster.local to upstreamAddr and caches.
type peer struct {
	// Config is the text of the configuration file; empty: none.
	Config string
	// Argv is the command line; config is the file that holds Config.
	Argv func(o options, config string) []string
}

const (
	serverIP   = "127.0.0.1"
	serverPort = "53"
	serverAddr = serverIP + ":" + serverPort

	upstreamIP   = "127.0.0.2"
	upstreamAddr = upstreamIP + ":53"
)

// corefile is the reference Corefile's cluster zone and its root zone, with the
// bench's addresses; extra stands in the cluster zone.
func corefile(extra string) string {
	return `cluster.local:53 {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    bind ` + serverIP + `
    forward . ` + upstreamIP + ` {
        force_tcp
    }` + extra + `
}
.:53 {
    errors
    cache 30
    bind ` + serverIP + `
    forward . ` + upstreamIP + `
}
`
}

func nodedns(o options, config string) []string {
	return []string{o.Bin, "-conf", config, "-localip", serverIP,
		"-setupinterface=false", "-setupiptables=false"}
}

// peers are the rows by name. All forward cluster.local over TCP where they
// can; dnsmasq forwards over the transport of the question, so over UDP.
func peers() map[string]peer {
	return map[string]peer{
		"floor": {Argv: func(options, string) []string { return []string{self(), "floor", serverAddr} }},
		"nodedns": {
			Config: corefile(""),
			Argv:   nodedns,
		},
		"nodedns-cut": {
			Config: corefile("\n    search_cut"),
			Argv:   nodedns,
		},
		"coredns": {
			Config: corefile(""),
			Argv: func(o options, config string) []string {
				return []string{filepath.Join(o.Programs, "coredns"), "-conf", config}
			},
		},
		"unbound": {
			Config: `server:
  interface: ` + serverIP + `
  port: ` + serverPort + `
  do-daemonize: no
  username: ""
  chroot: ""
  pidfile: ""
  use-syslog: no
  num-threads: 1
  so-reuseport: yes
  do-not-query-localhost: no
  module-config: "iterator"
  tcp-upstream: yes
  msg-cache-size: 16m
  rrset-cache-size: 32m
  outgoing-range: 4096
  num-queries-per-thread: 4096
  outgoing-num-tcp: 256
  incoming-num-tcp: 256
  access-control: 127.0.0.0/8 allow
  local-zone: "local." nodefault
  val-permissive-mode: yes
remote-control:
  control-enable: no
forward-zone:
  name: "."
  forward-addr: ` + upstreamIP + `
`,
			Argv: func(_ options, config string) []string { return []string{"/usr/sbin/unbound", "-d", "-c", config} },
		},
		"dnsmasq": {
			Argv: func(options, string) []string {
				return []string{"/usr/sbin/dnsmasq", "-k", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
					"--listen-address=" + serverIP, "--bind-interfaces", "--port=" + serverPort, "--cache-size=10000",
					"--server=" + upstreamIP, "--dns-forward-max=10000", "--pid-file=", "--user=root", "--log-facility=/dev/null"}
			},
		},
		"dnsdist": {
			Config: `setLocal("` + serverAddr + `")
setACL("127.0.0.0/8")
newServer({address="` + upstreamAddr + `", tcpOnly=true, healthCheckMode="up"})
pc = newPacketCache(20000, {maxTTL=30})
getPool(""):setCache(pc)
setSecurityPollSuffix("")
`,
			Argv: func(_ options, config string) []string {
				return []string{"/usr/bin/dnsdist", "--supervised", "--disable-syslog", "-C", config}
			},
		},
	}
}

func self() string {
	exe, err := os.Executable()
	if err != nil {
		return "/proc/self/exe"
	}
	return exe
}

// configure writes p's configuration and returns the argv that starts it.
func (p peer) configure(dir string, o options) ([]string, error) {
	file := filepath.Join(dir, "config")
	if p.Config != "" {
		if err := os.WriteFile(file, []byte(p.Config), 0o644); err != nil {
			return nil, fmt.Errorf("writing configuration: %w", err)
		}
	}
	return p.Argv(o, file), nil
}
