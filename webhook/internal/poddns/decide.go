package poddns

import (
	"errors"

	"github.com/nodedns/nodedns/webhook/internal/rawjson"
)

// Decision is what Decide found.
type Decision struct {
	Reason Reason
	// Inject tells whether Config is to be written into the Pod.
	Inject bool
	Config Config
	// Warnings are for the user who creates the Pod: the webhook would have acted but could not, or in part only.
	Warnings []string
}

// Decide says what becomes of a Pod. It is a function of its arguments alone.
//
// The order of the tests is part of the contract: what the Pod is comes before what the cluster is like at the moment,
// so that a Pod which is skipped for good has the same reason every time.
func Decide(pod Pod, in Input) Decision {
	if reason := eligible(&pod, in); reason != "" {
		return Decision{Reason: reason}
	}
	if in.EgressBlocked != nil && in.EgressBlocked(pod.Labels) {
		return Decision{Reason: NetworkPolicy, Warnings: []string{
			"nodedns: left as it is: a NetworkPolicy does not allow egress to the node-local address on port 53"}}
	}
	if !in.Cluster.known() {
		return Decision{Reason: ClusterDNSUnknown}
	}
	own, err := readConfig(pod.DNSConfig)
	if err != nil {
		return Decision{Reason: Malformed}
	}
	if err := errors.Join(own.check(), roomFor(&pod)); err != nil {
		return overLimit(err)
	}
	tuned := in.Namespace.tune()

	// Over the limit for good comes before not ready for now; so the shortest list of nameservers is tried first.
	auto := in.Policy.Fallback == FallbackAuto
	config, warnings, err := merge(nameservers(in.Cluster, auto), searches(in), tuned, own)
	if err != nil {
		return overLimit(err)
	}
	decision := Decision{Reason: Injected, Inject: true}
	caches := CachesNotReady
	if in.Caches != nil {
		caches = in.Caches(pod.Placement)
	}
	switch {
	case caches == CachesNotReady && in.Policy.NotReady != NotReadyClusterIP:
		return Decision{Reason: CacheNotReady}
	case caches == CachesNotReady:
		decision.Reason = ClusterIPInjected
		config, warnings, err = merge([]string{in.Cluster.ClusterIPs[0].String()}, searches(in), tuned, own)
	case auto && caches != CachesAllReady:
		config, warnings, err = merge(nameservers(in.Cluster, false), searches(in), tuned, own)
	}
	if err != nil {
		return overLimit(err)
	}
	if in.Policy.Audit {
		return Decision{Reason: AuditMode}
	}
	decision.Config = config
	decision.Warnings = append(tuned.warnings, warnings...)
	return decision
}

func overLimit(err error) Decision {
	return Decision{Reason: OverLimit, Warnings: []string{"nodedns: left as it is: " + err.Error()}}
}

// eligible returns why the Pod is not for us, empty if it is.
func eligible(pod *Pod, in Input) Reason {
	switch {
	case in.Namespace.Name == systemNamespace:
		return SystemNamespace
	case in.Policy.OwnNamespace != "" && in.Namespace.Name == in.Policy.OwnNamespace:
		return OwnNamespace
	case !rawjson.Get(pod.Annotations, mirrorAnnotation).Null():
		return MirrorPod
	}
	if reason := opted(pod, in); reason != "" {
		return reason
	}
	switch {
	case pod.windows():
		return Windows
	case pod.virtualNode():
		return VirtualNode
	}
	switch pod.DNSPolicy {
	case "", "ClusterFirst":
		if pod.HostNetwork {
			return HostNetwork
		}
	case "ClusterFirstWithHostNet":
	case "None":
		if pod.injected(in.Cluster) {
			return AlreadyInjected
		}
		return DNSPolicy
	default:
		return DNSPolicy
	}
	return ""
}

// opted applies Pod label over namespace label over default. A value that is neither word counts as no label.
func opted(pod *Pod, in Input) Reason {
	label := rawjson.Get(pod.Labels, InjectionLabel)
	switch {
	case label.Is(Disabled):
		return OptedOut
	case label.Is(Enabled) && in.Policy.PodOptIn:
		return ""
	}
	switch {
	case in.Namespace.Injection == Enabled:
		return ""
	case in.Namespace.Injection == Disabled:
		return OptedOut
	case in.Policy.Default:
		return ""
	}
	return NotEnabled
}

// injected tells whether an earlier call wrote this Pod's DNS. The nameservers say so, not the mark alone: a template
// may carry the mark, and another webhook may have undone the fields.
func (p *Pod) injected(cluster Cluster) bool {
	marked := !rawjson.Get(p.Labels, InjectedLabel).Null()
	for server := range rawjson.Elements(rawjson.Get(p.DNSConfig, "nameservers")) {
		for _, local := range cluster.LocalIPs {
			if server.Is(local.String()) {
				return true
			}
		}
		for _, ip := range cluster.ClusterIPs {
			if marked && server.Is(ip.String()) {
				return true
			}
		}
	}
	return false
}
