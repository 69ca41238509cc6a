package bed

import (
	"context"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// secondPort is the second API server's port at ControlPlaneIP.
const secondPort = 6444

// StartSecondAPIServer starts another API server on the same etcd, as in a control plane of several machines, and returns
// a kubeconfig for it that is made from the given one, for programs inside the namespace.
func (cp *ControlPlane) StartSecondAPIServer(ctx context.Context, kubeconfig string) (string, error) {
	// The two would contend for the one entry that this address has among the endpoints of Service kubernetes.
	args := append(cp.apiServerArgs(secondPort), "--endpoint-reconciler-type=none")
	p, err := cp.startAPIServer(ctx, "kube-apiserver-second", args, cp.SecondRESTConfig())
	cp.mu.Lock()
	cp.second = p
	cp.mu.Unlock()
	if err != nil {
		return "", err
	}
	inner, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", kubeconfig, err)
	}
	for _, c := range inner.Clusters {
		c.Server = secondServer()
	}
	path := cp.ws.Path("second-" + filepath.Base(kubeconfig))
	if err := clientcmd.WriteToFile(*inner, path); err != nil {
		return "", fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return path, nil
}

// SecondRESTConfig is RESTConfig for the second API server.
func (cp *ControlPlane) SecondRESTConfig() *rest.Config {
	config := cp.RESTConfig()
	config.Host, config.Dial = secondServer(), cp.ns.Dial
	return config
}

func secondServer() string { return fmt.Sprintf("https://%s:%d", ControlPlaneIP, secondPort) }

// StopSecondAPIServer ends it; StartSecondAPIServer brings it back.
func (cp *ControlPlane) StopSecondAPIServer() {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.second.Stop(stopGrace)
}
