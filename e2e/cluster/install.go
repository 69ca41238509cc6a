package cluster

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Where the project's parts live in a cluster.
const (
	cacheNamespace   = "kube-system"
	cacheName        = "nodedns-cache"
	webhookNamespace = "nodedns"
	webhookName      = "nodedns-webhook"
)

// InjectLabel is the label that opts a namespace in.
func InjectLabel() map[string]string { return map[string]string{"node-local-dns-injection": "enabled"} }

// Install installs the project as its README says and returns when every node's cache and the webhook are ready.
func (e *Env) Install(ctx context.Context) error {
	e.con.Step("kubectl apply -k manifests/self-managed")
	if _, err := e.Kubectl(ctx, "apply", "-k", e.Manifests("self-managed")); err != nil {
		return err
	}
	if err := e.WaitDaemonSet(ctx, cacheNamespace, cacheName); err != nil {
		return err
	}
	e.con.Step("the cache is ready on every node")
	if err := e.WaitDeployment(ctx, webhookNamespace, webhookName, 1); err != nil {
		return err
	}
	e.con.Step("the webhook is ready")
	return nil
}

// CachePod names the cache's Pod on a node and tells how often its container was restarted and whether it is ready.
func (e *Env) CachePod(ctx context.Context, node string) (name string, restarts int32, ready bool, err error) {
	pods, err := e.Client.CoreV1().Pods(cacheNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "k8s-app=" + cacheName, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return "", 0, false, fmt.Errorf("looking for the cache's Pod on %s: %w", node, err)
	}
	if len(pods.Items) != 1 {
		return "", 0, false, fmt.Errorf("%d Pods of the cache on %s", len(pods.Items), node)
	}
	p := pods.Items[0]
	for _, c := range p.Status.ContainerStatuses {
		restarts += c.RestartCount
	}
	return p.Name, restarts, podReady(&p), nil
}

// nameservers are those of a resolv.conf.
func nameservers(resolvConf string) []string {
	var out []string
	for line := range strings.Lines(resolvConf) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "nameserver" {
			out = append(out, f[1])
		}
	}
	return out
}
