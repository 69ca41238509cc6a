// Package poddns holds what the webhook thinks about one Pod: whether its DNS is rewritten, to what, and the JSON patch
// that does it. It owns no state, reads no clock, talks to nobody, and never changes anything but the DNS fields, one
// label and one annotation.
//
//	pod, err := poddns.Parse(review.Object)
//	decision := poddns.Decide(pod, input)
//	patch := poddns.Patch(pod, decision) // nil: leave the Pod as it is
package poddns

const (
	// InjectionLabel opts in or out, on a Pod or a Namespace, with the values Enabled and Disabled.
	InjectionLabel = "node-local-dns-injection"
	Enabled        = "enabled"
	Disabled       = "disabled"

	// InjectedLabel marks a Pod whose DNS was rewritten, so that such Pods can be listed by selector.
	InjectedLabel = "node-local-dns-injection.nodedns.io/injected"
	// ReplacedPolicyAnnotation keeps the dnsPolicy the Pod had.
	ReplacedPolicyAnnotation = "node-local-dns-injection.nodedns.io/replaced-dns-policy"

	// Annotations of a Namespace that tune the resolver of the Pods injected there.
	NdotsAnnotation      = "node-local-dns-injection.nodedns.io/ndots"
	TimeoutAnnotation    = "node-local-dns-injection.nodedns.io/timeout"
	AttemptsAnnotation   = "node-local-dns-injection.nodedns.io/attempts"
	NameserverAnnotation = "node-local-dns-injection.nodedns.io/nameserver"

	mirrorAnnotation = "kubernetes.io/config.mirror"
	systemNamespace  = "kube-system"
)
