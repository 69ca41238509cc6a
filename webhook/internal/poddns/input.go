package poddns

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

// Input is everything but the Pod that a decision depends on.
type Input struct {
	Namespace Namespace
	Cluster   Cluster
	Policy    Policy
	// Caches tells how the caches stand where a Pod of that placement may land. It is asked only for a Pod that would
	// be injected otherwise.
	Caches func(Placement) Caches
	// EgressBlocked tells whether an egress policy keeps a Pod with these labels from the local address. Nil: none.
	EgressBlocked func(labels []byte) bool
}

// Caches is the state of the caches on the nodes where a Pod may land.
type Caches uint8

const (
	// CachesNotReady: too few are ready, or nothing is known.
	CachesNotReady Caches = iota
	// CachesReady: enough are ready.
	CachesReady
	// CachesAllReady: every one is, and by that proves that its guard and backstop stand.
	CachesAllReady
)

// Namespace is the Pod's namespace, by the name in the request: the object's own field is often empty.
type Namespace struct {
	Name string
	// Injection is the value of InjectionLabel, empty if there is none.
	Injection string
	// Ndots, Timeout, Attempts and Nameserver are annotation values as written; empty means unset.
	Ndots, Timeout, Attempts, Nameserver string
}

// NewNamespace picks what matters from a Namespace's labels and annotations.
func NewNamespace(name string, labels, annotations map[string]string) Namespace {
	return Namespace{
		Name:       name,
		Injection:  labels[InjectionLabel],
		Ndots:      annotations[NdotsAnnotation],
		Timeout:    annotations[TimeoutAnnotation],
		Attempts:   annotations[AttemptsAnnotation],
		Nameserver: annotations[NameserverAnnotation],
	}
}

// Cluster is what ClusterFirst would have been made of. The zero value means unknown.
type Cluster struct {
	// LocalIPs are the addresses of the node caches, one for each IP family that Pods use.
	LocalIPs []netip.Addr
	// ClusterIPs are those of the cluster DNS Service, the primary one first.
	ClusterIPs []netip.Addr
	// Domain is the cluster domain without a dot at its end.
	Domain string
	// HostSearches are the search domains that kubelet takes over from the node.
	HostSearches []string
	// HostSearchesKnown is false until they were read: an empty list is an answer too.
	HostSearchesKnown bool
}

// known tells whether a Pod's DNS can be rebuilt without a guess.
func (c Cluster) known() bool {
	return len(c.LocalIPs) > 0 && len(c.ClusterIPs) > 0 && c.Domain != "" && c.HostSearchesKnown
}

// Fallback says when the cluster DNS is the second nameserver.
type Fallback string

const (
	// FallbackAlways puts it into every Pod.
	FallbackAlways Fallback = "always"
	// FallbackAuto leaves it out where every cache is ready and proves by that that its guard and backstop stand: they
	// answer from cluster DNS when it dies, and musl, which asks all nameservers at once, then asks the cache alone.
	FallbackAuto Fallback = "auto"
)

// NotReady says what becomes of a Pod while no cache is ready.
type NotReady string

const (
	// NotReadyLeave leaves the Pod as it is: kubelet gives it the cluster DNS.
	NotReadyLeave NotReady = "leave"
	// NotReadyClusterIP gives it the cluster DNS explicitly, for clusters whose kubelet hands out the local address.
	NotReadyClusterIP NotReady = "cluster-ip"
)

// Policy is what the operator chose.
type Policy struct {
	// OwnNamespace is where the webhook runs; its Pods are never touched.
	OwnNamespace string
	// Default injects Pods for which no label decides. Off unless set.
	Default bool
	// PodOptIn lets a Pod label say enabled where the namespace does not. Off unless set.
	PodOptIn bool
	// Audit decides but patches nothing.
	Audit bool
	// Fallback: empty means FallbackAlways.
	Fallback Fallback
	// NotReady: empty means NotReadyLeave.
	NotReady NotReady
}

// Validate lists every problem of p.
func (p Policy) Validate() error {
	var errs []error
	switch p.Fallback {
	case "", FallbackAlways, FallbackAuto:
	default:
		errs = append(errs, fmt.Errorf("fallback nameserver %q: want %s or %s", p.Fallback, FallbackAlways, FallbackAuto))
	}
	switch p.NotReady {
	case "", NotReadyLeave, NotReadyClusterIP:
	default:
		errs = append(errs, fmt.Errorf("not-ready action %q: want %s or %s", p.NotReady, NotReadyLeave, NotReadyClusterIP))
	}
	return errors.Join(errs...)
}

// tuning is the validated form of a Namespace's annotations.
type tuning struct {
	options    []Option // ndots is always there
	nameserver netip.Addr
	warnings   []string
}

// tune reads the annotations; a value out of range is left out with a warning, for the Pods must not pay for it. The
// upper bounds are what resolvers cap silently (resolv.conf(5)).
func (n Namespace) tune() tuning {
	var t tuning
	add := func(name, annotation, value, otherwise string, low, high int) {
		if value != "" {
			if v, err := strconv.Atoi(value); err == nil && v >= low && v <= high {
				otherwise = strconv.Itoa(v)
			} else {
				t.warnings = append(t.warnings, fmt.Sprintf("nodedns: namespace annotation %s=%q ignored: want a number from %d to %d",
					annotation, value, low, high))
			}
		}
		if otherwise != "" {
			t.options = append(t.options, Option{Name: name, Value: otherwise})
		}
	}
	add("ndots", NdotsAnnotation, n.Ndots, "5", 0, 15)
	add("timeout", TimeoutAnnotation, n.Timeout, "", 1, 30)
	add("attempts", AttemptsAnnotation, n.Attempts, "", 1, 5)
	if n.Nameserver != "" {
		addr, err := netip.ParseAddr(n.Nameserver)
		if err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
			t.warnings = append(t.warnings, fmt.Sprintf("nodedns: namespace annotation %s=%q ignored: want an IP address",
				NameserverAnnotation, n.Nameserver))
		} else {
			t.nameserver = addr.Unmap()
		}
	}
	return t
}
