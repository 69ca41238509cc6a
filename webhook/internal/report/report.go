// Package report says of the Pods of a cluster who is injected, who would be if it were created anew, and whose injected
// settings no longer match the cluster. It owns that reading; it fetches nothing.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// State of one Pod.
type State string

const (
	// Injected: it asks the cache of its node, with settings that match the cluster.
	Injected State = "injected"
	// Outdated: it asks the cache of its node, but something it was given is no longer so.
	Outdated State = "outdated"
	// WouldBe: it is not injected; created now it would be.
	WouldBe State = "would-be-injected"
	// Skipped: it is not injected and would not be.
	Skipped State = "skipped"
)

// Row is one Pod.
type Row struct {
	Namespace string        `json:"namespace"`
	Pod       string        `json:"pod"`
	Node      string        `json:"node,omitempty"`
	State     State         `json:"state"`
	Reason    poddns.Reason `json:"reason,omitempty"`   // why it is skipped
	Problems  []string      `json:"problems,omitempty"` // why it is outdated
}

// Report is the whole.
type Report struct {
	Pods    []Row         `json:"pods"`
	Summary map[State]int `json:"summary"`
	// SafeToUninstall is whether no running Pod has the local address in its resolv.conf. While one has, the caches and
	// what they set up on the nodes must stay; the webhook alone may always go.
	SafeToUninstall bool `json:"safeToUninstall"`
	// Blocking is the number of Pods in the way of uninstalling the caches.
	Blocking int `json:"blocking"`
	// Configuration lists where the webhook configuration in the cluster and the flags disagree. Build leaves it empty.
	Configuration []string `json:"configuration,omitempty"`
}

// Namespaces gives a Pod's namespace.
type Namespaces func(name string) (poddns.Namespace, bool)

// Build makes the report. in is the input of a decision without its namespace.
func Build(pods []corev1.Pod, namespaces Namespaces, in poddns.Input, blocked func(namespace string, labels []byte) bool) (Report, error) {
	r := Report{Pods: []Row{}, Summary: map[State]int{Injected: 0, Outdated: 0, WouldBe: 0, Skipped: 0}}
	for i := range pods {
		pod := &pods[i]
		if ended(pod) {
			continue
		}
		row, err := judge(pod, namespaces, in, blocked)
		if err != nil {
			return Report{}, fmt.Errorf("judging Pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if Blocks(pod, in.Cluster.LocalIPs) {
			r.Blocking++
		}
		r.Pods = append(r.Pods, row)
		r.Summary[row.State]++
	}
	slices.SortFunc(r.Pods, func(a, b Row) int { return strings.Compare(a.Namespace+"/"+a.Pod, b.Namespace+"/"+b.Pod) })
	r.SafeToUninstall = r.Blocking == 0
	return r, nil
}

func judge(pod *corev1.Pod, namespaces Namespaces, in poddns.Input, blocked func(string, []byte) bool) (Row, error) {
	row := Row{Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName}
	if pod.Spec.DNSPolicy == corev1.DNSNone && uses(pod, in.Cluster.LocalIPs) {
		row.State = Injected
		if row.Problems = problems(pod, in.Cluster); len(row.Problems) > 0 {
			row.State = Outdated
		}
		return row, nil
	}
	ns, ok := namespaces(pod.Namespace)
	if !ok {
		row.State, row.Reason = Skipped, poddns.NamespaceUnknown
		return row, nil
	}
	object, err := json.Marshal(pod)
	if err != nil {
		return Row{}, err
	}
	parsed, err := poddns.Parse(object)
	if err != nil {
		return Row{}, err
	}
	in.Namespace = ns
	if blocked != nil {
		in.EgressBlocked = func(labels []byte) bool { return blocked(pod.Namespace, labels) }
	}
	decision := poddns.Decide(parsed, in)
	row.State, row.Reason = Skipped, decision.Reason
	if decision.Reason == poddns.Injected || decision.Reason == poddns.AuditMode {
		row.State, row.Reason = WouldBe, ""
	}
	return row, nil
}

// Blocks tells whether the Pod is in the way of uninstalling the caches: it runs, or will, and has one of their addresses
// among its nameservers.
func Blocks(pod *corev1.Pod, local []netip.Addr) bool { return !ended(pod) && uses(pod, local) }

// ended tells of a Pod that resolves nothing any more.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func uses(pod *corev1.Pod, local []netip.Addr) bool {
	return pod.Spec.DNSConfig != nil && slices.ContainsFunc(local, func(ip netip.Addr) bool {
		return slices.Contains(pod.Spec.DNSConfig.Nameservers, ip.String())
	})
}

// problems lists what an injected Pod was given that the cluster has no longer. Nameservers and searches of the user's
// own look like old ones of ours, so only the places where ours stand are looked at.
func problems(pod *corev1.Pod, cluster poddns.Cluster) []string {
	var out []string
	servers := pod.Spec.DNSConfig.Nameservers
	if !slices.ContainsFunc(cluster.LocalIPs, func(ip netip.Addr) bool { return servers[0] == ip.String() }) {
		out = append(out, fmt.Sprintf("the first nameserver is %s, not the cache", servers[0]))
	}
	if len(servers) > 1 && len(cluster.ClusterIPs) > 0 && !slices.ContainsFunc(cluster.ClusterIPs, func(ip netip.Addr) bool { return slices.Contains(servers, ip.String()) }) {
		out = append(out, fmt.Sprintf("none of the nameservers %s is the cluster DNS %s", strings.Join(servers, " "), cluster.ClusterIPs[0]))
	}
	if want := pod.Namespace + ".svc." + cluster.Domain; cluster.Domain != "" && !slices.Contains(pod.Spec.DNSConfig.Searches, want) {
		out = append(out, fmt.Sprintf("the searches lack %s", want))
	}
	return out
}

// WriteJSON writes the report as JSON.
func (r Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// WriteTable writes the report for people.
func (r Report) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tPOD\tNODE\tSTATE\tWHY")
	for _, row := range r.Pods {
		why := string(row.Reason)
		if len(row.Problems) > 0 {
			why = strings.Join(row.Problems, "; ")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", row.Namespace, row.Pod, row.Node, row.State, why)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, problem := range r.Configuration {
		if _, err := fmt.Fprintf(w, "\nflags and webhook configuration disagree: %s\n", problem); err != nil {
			return err
		}
	}
	verdict := "the caches may be uninstalled: no Pod asks them by address"
	if !r.SafeToUninstall {
		verdict = fmt.Sprintf("the caches must stay: %d Pods have the local address in their resolv.conf; delete the webhook first, then replace those Pods", r.Blocking)
	}
	_, err := fmt.Fprintf(w, "\n%d injected, %d outdated, %d would be injected, %d skipped; %s\n",
		r.Summary[Injected], r.Summary[Outdated], r.Summary[WouldBe], r.Summary[Skipped], verdict)
	return err
}
