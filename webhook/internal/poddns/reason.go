package poddns

// Reason says why a Pod was or was not rewritten. It is the metric label, the audit annotation and the word the report
// prints, so the set is closed and the spelling stable.
type Reason string

const (
	// Injected: the Pod asks the cache of its node first.
	Injected Reason = "injected"
	// ClusterIPInjected: no ready cache; the Pod was given the cluster DNS explicitly (Policy.NotReady).
	ClusterIPInjected Reason = "cluster-ip-injected"
	// AlreadyInjected: the fields are as an earlier call left them.
	AlreadyInjected Reason = "already-injected"
	// AuditMode: it would have been injected.
	AuditMode Reason = "audit"

	// SystemNamespace: kube-system, whose Pods cluster DNS itself may need.
	SystemNamespace Reason = "system-namespace"
	// OwnNamespace: the webhook's own Pods must never wait for the webhook.
	OwnNamespace Reason = "own-namespace"
	// OptedOut: a label says disabled.
	OptedOut Reason = "opted-out"
	// NotEnabled: no label says enabled and the default is off.
	NotEnabled Reason = "not-enabled"
	// MirrorPod: the object only mirrors a static Pod; changing it changes nothing that runs.
	MirrorPod Reason = "mirror-pod"
	// Windows nodes have no such address.
	Windows Reason = "windows"
	// VirtualNode: the Pod runs behind a virtual kubelet, where no node cache is.
	VirtualNode Reason = "virtual-node"
	// HostNetwork with ClusterFirst means the node's own DNS, which is what the Pod had asked for.
	HostNetwork Reason = "host-network"
	// DNSPolicy: the user chose Default or None.
	DNSPolicy Reason = "policy"
	// NetworkPolicy: an egress policy would drop questions to the local address.
	NetworkPolicy Reason = "network-policy"
	// OverLimit: the merged configuration is more than the API or the resolver takes.
	OverLimit Reason = "over-limit"
	// ClusterDNSUnknown: without ClusterIP, cluster domain and node searches a patch would be a guess.
	ClusterDNSUnknown Reason = "cluster-dns-unknown"
	// CacheNotReady: too few caches where the Pod may land.
	CacheNotReady Reason = "cache-not-ready"
	// NamespaceUnknown: what the namespace's labels say could not be learnt in time.
	NamespaceUnknown Reason = "namespace-unknown"
	// Malformed: what was sent could not be read as a Pod.
	Malformed Reason = "malformed"
)

// Reasons lists every reason, for metrics that shall be there before the first Pod and for documentation.
func Reasons() []Reason {
	return []Reason{
		Injected, ClusterIPInjected, AlreadyInjected, AuditMode, SystemNamespace, OwnNamespace, OptedOut, NotEnabled,
		MirrorPod, Windows, VirtualNode, HostNetwork, DNSPolicy, NetworkPolicy, OverLimit, ClusterDNSUnknown,
		CacheNotReady, NamespaceUnknown, Malformed,
	}
}
