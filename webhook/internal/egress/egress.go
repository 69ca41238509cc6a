// Package egress tells whether NetworkPolicies keep a Pod from the node-local address. A namespace whose egress allows
// just the cluster DNS Pods would lose DNS by being pointed elsewhere. It owns that reading of the policies; it does
// not know what a network plugin makes of them, and takes their text at its word.
package egress

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

const dnsPort = 53

// Informer is the part of a client-go informer that is needed; it must index by namespace.
type Informer interface {
	SetTransform(cache.TransformFunc) error
	GetIndexer() cache.Indexer
}

// Policies is safe for concurrent use.
type Policies struct {
	indexer cache.Indexer
	local   []netip.Addr
}

// New reads the policies of an informer that has not started yet. local are the addresses of the node caches.
func New(informer Informer, local []netip.Addr) (*Policies, error) {
	if err := informer.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("setting the transform of NetworkPolicies: %w", err)
	}
	return &Policies{indexer: informer.GetIndexer(), local: local}, nil
}

// Blocked tells whether a Pod of that namespace with these labels, a JSON object or empty, is kept from port 53 of a
// local address over UDP. TCP is not asked for: a policy without it left the Pod without TCP before as well.
func (p *Policies) Blocked(namespace string, rawLabels []byte) bool {
	objects, err := p.indexer.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil || len(objects) == 0 {
		return false
	}
	var podLabels labels.Set
	if len(rawLabels) > 0 {
		if err := json.Unmarshal(rawLabels, &podLabels); err != nil {
			return false
		}
	}
	selected := false
	allowed := make([]bool, len(p.local))
	for _, object := range objects {
		policy := object.(*networkingv1.NetworkPolicy)
		if !slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil || !selector.Matches(podLabels) {
			continue
		}
		selected = true
		for i, ip := range p.local {
			allowed[i] = allowed[i] || slices.ContainsFunc(policy.Spec.Egress, func(rule networkingv1.NetworkPolicyEgressRule) bool {
				return allows(rule, ip)
			})
		}
	}
	return selected && slices.Contains(allowed, false)
}

func allows(rule networkingv1.NetworkPolicyEgressRule, ip netip.Addr) bool {
	return (len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, portAllows)) &&
		(len(rule.To) == 0 || slices.ContainsFunc(rule.To, func(peer networkingv1.NetworkPolicyPeer) bool { return peerAllows(peer, ip) }))
}

func portAllows(port networkingv1.NetworkPolicyPort) bool {
	switch {
	case port.Protocol == nil || *port.Protocol != corev1.ProtocolUDP: // absent means TCP
		return false
	case port.Port == nil:
		return true
	case port.Port.StrVal != "": // a named port is one of a Pod, and the cache is no Pod to a policy
		return false
	case port.EndPort != nil:
		return port.Port.IntVal <= dnsPort && dnsPort <= *port.EndPort
	}
	return port.Port.IntVal == dnsPort
}

// peerAllows looks at address blocks only: selectors choose Pods, and the address is none's.
func peerAllows(peer networkingv1.NetworkPolicyPeer, ip netip.Addr) bool {
	if peer.IPBlock == nil || !covers(peer.IPBlock.CIDR, ip) {
		return false
	}
	return !slices.ContainsFunc(peer.IPBlock.Except, func(cidr string) bool { return covers(cidr, ip) })
}

func covers(cidr string, ip netip.Addr) bool {
	prefix, err := netip.ParsePrefix(cidr)
	return err == nil && prefix.Contains(ip)
}

func trim(object any) (any, error) {
	in, ok := object.(*networkingv1.NetworkPolicy)
	if !ok {
		return object, nil
	}
	out := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: in.Name, Namespace: in.Namespace, ResourceVersion: in.ResourceVersion},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: in.Spec.PodSelector, PolicyTypes: in.Spec.PolicyTypes, Egress: in.Spec.Egress},
	}
	return out, nil
}
