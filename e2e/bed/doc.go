// Package bed runs a real small Kubernetes cluster on one machine without docker, for tests and for the demonstration.
//
// It owns the control plane (etcd, kube-apiserver, kube-controller-manager, kube-scheduler, each the real program, in a
// network namespace of their own) and the nodes (User-Mode Linux kernels with kubelet, containerd, CNI and kube-proxy).
// It knows nothing of what is tested in it.
//
// A control plane alone is up in seconds, several may run at once, and none of it is reachable from other machines:
//
//	cp, err := bed.StartControlPlane(ctx, bed.Config{Console: console.New(t.Output())})
//	defer cp.Stop()
//	client := kubernetes.NewForConfigOrDie(cp.RESTConfig())    // or any program with KUBECONFIG=cp.Kubeconfig()
//
// A webhook that the API server shall call either listens inside the namespace (cp.Listen, or a process started with
// cp.Start) or stays outside and is made reachable with cp.Publish.
package bed
