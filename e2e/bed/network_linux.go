package bed

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/host"
)

// bridge connects the nodes' taps and carries the control plane's address.
const bridge = "bed0"

// network sets up the links of the calling thread's namespace. Without nodes the address sits on the loopback, so that
// a control plane needs neither the bridge nor the tun module.
func network(nodes int) error {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback: %w", err)
	}
	mask := net.CIDRMask(32, 32)
	if nodes > 0 {
		if link, err = addBridge(); err != nil {
			return err
		}
		mask = net.CIDRMask(24, 32)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ControlPlaneIP), Mask: mask}}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("adding %s: %w", ControlPlaneIP, err)
	}
	for n := 1; n <= nodes; n++ {
		if err := addTap(link, n); err != nil {
			return err
		}
	}
	if nodes == 0 {
		return nil
	}
	// The thread's own namespace is the one that /proc/sys/net shows.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("turning forwarding on: %w", err)
	}
	return nil
}

func addBridge() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridge
	b := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(b); err != nil {
		return nil, fmt.Errorf("adding a bridge (kernel module bridge): %w", err)
	}
	if err := netlink.LinkSetUp(b); err != nil {
		return nil, fmt.Errorf("setting the bridge up: %w", err)
	}
	return b, nil
}

// addTap makes the link that node n's kernel attaches to, and the route to its Pods, on which the API server calls
// webhooks.
func addTap(bridge netlink.Link, n int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = tapName(n), bridge.Attrs().Index
	tap := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_DEFAULTS}
	if err := netlink.LinkAdd(tap); err != nil {
		return fmt.Errorf("adding %s (kernel module tun): %w", attrs.Name, err)
	}
	if err := netlink.LinkSetUp(tap); err != nil {
		return fmt.Errorf("setting %s up: %w", attrs.Name, err)
	}
	pods := nodePods(n)
	route := &netlink.Route{
		Dst: &net.IPNet{IP: pods.Addr().AsSlice(), Mask: net.CIDRMask(pods.Bits(), 32)}, Gw: nodeIP(n).AsSlice(),
	}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("adding the route to the Pods of %s: %w", nodeName(n), err)
	}
	return nil
}

func tapName(n int) string { return fmt.Sprintf("tap%d", n) }

// defaultAccount waits until the controller manager has made the ServiceAccount without which no Pod can be created in
// the namespace default.
func (cp *ControlPlane) defaultAccount(ctx context.Context) error {
	client, err := cp.Client()
	if err != nil {
		return err
	}
	return host.Until(ctx, "the controller manager", 60*time.Second, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", v1.GetOptions{})
		return err
	}, cp.kcm, cp.sched, cp.api)
}
