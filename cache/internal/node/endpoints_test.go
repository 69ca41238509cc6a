package node

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestKernelEndpoints reads the endpoints from rules as different versions of kube-proxy write them.
func TestKernelEndpoints(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		const services = `
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.10 . udp . 53 : goto service-AAAAAAAA-kube-system/kube-dns/udp/dns,
                 10.96.0.10 . tcp . 53 : goto service-BBBBBBBB-kube-system/kube-dns/tcp/dns-tcp,
                 10.96.0.1 . tcp . 443 : goto service-BBBBBBBB-kube-system/kube-dns/tcp/dns-tcp }
  }`
		const tcp = `
  chain service-BBBBBBBB-kube-system/kube-dns/tcp/dns-tcp { meta l4proto tcp dnat to 10.244.9.9:53; }`
		for _, c := range []struct {
			name   string
			mode   Mode
			script string
			want   []string
		}{
			{"nftables, one endpoint", NFTables, `
  chain service-AAAAAAAA-kube-system/kube-dns/udp/dns {
    ip daddr 10.96.0.10 udp dport 53 ip saddr != 10.244.0.0/16 counter
    meta l4proto udp dnat to 10.244.1.53:53
  }`, []string{"10.244.1.53:53"}},
			{"nftables, a map of endpoints", NFTables, `
  chain service-AAAAAAAA-kube-system/kube-dns/udp/dns {
    meta l4proto udp dnat ip addr . port to numgen random mod 2 map { 0 : 10.244.1.53 . 53, 1 : 10.244.1.54 . 5353 }
  }`, []string{"10.244.1.53:53", "10.244.1.54:5353"}},
			{"nftables, a chain for each endpoint", NFTables, `
  chain endpoint-CCCCCCCC-kube-system/kube-dns/udp/dns__10.244.1.53/53 { meta l4proto udp dnat to 10.244.1.53:53; }
  chain endpoint-DDDDDDDD-kube-system/kube-dns/udp/dns__10.244.1.54/53 { meta l4proto udp dnat to 10.244.1.54:53; }
  chain service-AAAAAAAA-kube-system/kube-dns/udp/dns {
    numgen random mod 2 vmap { 0 : goto endpoint-CCCCCCCC-kube-system/kube-dns/udp/dns__10.244.1.53/53, 1 : goto endpoint-DDDDDDDD-kube-system/kube-dns/udp/dns__10.244.1.54/53 }
  }`, []string{"10.244.1.53:53", "10.244.1.54:53"}},
			{"nftables, no endpoint", NFTables, `
  chain service-AAAAAAAA-kube-system/kube-dns/udp/dns { counter; }`, nil},
			{"no kube-proxy", NFTables, "", nil},
			{"iptables", IPTables, "", []string{"10.244.1.53:53", "10.244.1.54:53"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				n := p.node(t, Config{Mode: c.mode, SkipRules: true})
				s := newSide(v4)
				var err error
				if s.tables, s.flavour, err = p.host().Tables(v4, p.flavour, 0); err != nil {
					t.Fatal(err)
				}
				switch {
				case c.mode == NFTables && p.uml:
					t.Skip("the kernel of the package user-mode-linux has no nf_tables families")
				case c.mode == IPTables:
					sh(t, proxyScript(c.mode, p.flavour))
				case c.script != "":
					sh(t, "nft -f - <<'END'\ntable ip kube-proxy {"+c.script+tcp+services+"\n}\nEND")
					t.Cleanup(func() { sh(t, "nft delete table ip kube-proxy") })
				}
				got, err := n.readEndpoints(s, c.mode, netip.MustParseAddrPort("10.96.0.10:53"))
				if err != nil {
					t.Fatal(err)
				}
				slices.SortFunc(got, netip.AddrPort.Compare)
				var text []string
				for _, ap := range got {
					text = append(text, ap.String())
				}
				if diff := cmp.Diff(c.want, text); diff != "" {
					t.Error(diff)
				}
			})
		}
	})
}

// TestReadingEndpoints: kube-proxy's rules are read again when they change, or after a while; and however dear that is on a
// node, it puts off no repair.
func TestReadingEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		serviceRules(f, "10.96.0.10", "10.244.0.7:53")
		n := started(t, makeNode(t, Config{Mode: IPTables, Guard: LevelSocket, Flavour: NFT}, f, kindOurs))
		due := func(when string, want bool) {
			t.Helper()
			if got := n.endpointsDue(n.sides[0]); got != want {
				t.Errorf("%s: to be read: %t", when, got)
			}
		}
		due("at first", true)
		due("at once again", false)
		time.Sleep(n.cfg.Sync)
		due("after a while", true)
		more := change{chain: "KUBE-SEP-DNS", insert: true, pos: 1, spec: []string{"-p", "tcp", "-j", "DNAT", "--to-destination", "10.244.0.8:53"}}
		if err := f.rules[v4].Commit("nat", []change{more}); err != nil {
			t.Fatal(err)
		}
		due("after a change", true)

		n.sides[0].read.allowance = allowance{left: -time.Minute, at: time.Now()}
		f.mu.Lock()
		f.rules[v4].chains[chainKey{"nat", "OUTPUT"}] = nil
		f.rules[v4].generation++
		f.mu.Unlock()
		n.keepProxy(t.Context())
		n.keepRules(t.Context())
		if f.mu.Lock(); len(f.rules[v4].chains[chainKey{"nat", "OUTPUT"}]) == 0 {
			t.Error("not repaired")
		}
		f.mu.Unlock()
	})
}
