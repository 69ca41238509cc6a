package main

import (
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// connect makes the client. It speaks protobuf, which at thousands of nodes halves what the first list costs. Its watches
// go through s, which may be nil.
func (o options) connect(s *streams) (*rest.Config, kubernetes.Interface, error) {
	// As kubectl does: the flag, KUBECONFIG, the file in the home directory; in a Pod its service account.
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("reading the API server's address and credentials: %w; outside a Pod give -kubeconfig or set KUBECONFIG", err)
	}
	cfg.UserAgent = "nodedns-webhook"
	cfg.QPS, cfg.Burst = 50, 100
	typed := rest.CopyConfig(cfg)
	typed.ContentType = "application/vnd.kubernetes.protobuf"
	typed.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if s != nil {
		typed.Wrap(s.wrap)
	}
	client, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, nil, fmt.Errorf("making a client: %w", err)
	}
	return cfg, client, nil
}
