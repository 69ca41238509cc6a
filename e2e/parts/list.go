package parts

import "time"

// kubernetesVersion is what the Kubernetes programs report; nothing sets it in a build from the module alone. It must
// be the version in components/kubernetes/go.mod (a test compares them).
const kubernetesVersion = "v1.37.2"

// A Part is one program.
type Part struct {
	// Name is the program's file name.
	Name string
	// Module is the folder below e2e/components; empty for programs of this repository.
	Module string
	// Package is its import path, or a path relative to the module.
	Package string
	// Tags are build tags.
	Tags string
	// CGO is set where the program needs C.
	CGO bool
	// Stamp is an additional linker flag.
	Stamp string
	// Cold is about how long the first build takes on two cores, downloads not counted.
	Cold time.Duration
}

// The groups of parts by use. Functions, since a package-level slice could be changed by anyone.

// ControlPlane are the parts of a control plane, and kubectl.
func ControlPlane() []Part {
	return []Part{
		{Name: "etcd", Module: "etcd", Package: "go.etcd.io/etcd/server/v3", Cold: 40 * time.Second},
		kubernetes("kube-apiserver", 5*time.Minute),
		kubernetes("kube-controller-manager", 95*time.Second),
		kubernetes("kube-scheduler", 12*time.Second),
		kubernetes("kubectl", 30*time.Second),
	}
}

// Node are the parts of a node: kubelet, kube-proxy, the container runtime, the network plugins, and our own agent.
func Node() []Part {
	const runtimeTags = "no_btrfs no_devmapper no_zfs no_aufs"
	containerd := func(name string, cold time.Duration) Part {
		return Part{Name: name, Module: "containerd", Package: "github.com/containerd/containerd/v2/cmd/" + name, Tags: runtimeTags, Cold: cold}
	}
	cni := func(kind, name string) Part {
		return Part{Name: name, Module: "cni", Package: "github.com/containernetworking/plugins/plugins/" + kind + "/" + name, Cold: 3 * time.Second}
	}
	return []Part{
		kubernetes("kubelet", 45*time.Second),
		kubernetes("kube-proxy", 13*time.Second),
		containerd("containerd", 80*time.Second),
		containerd("containerd-shim-runc-v2", 8*time.Second),
		containerd("ctr", 10*time.Second),
		// Without the tag, runc refuses every container with a seccomp profile.
		{Name: "runc", Module: "runc", Package: "github.com/opencontainers/runc", Tags: "seccomp", CGO: true, Cold: 15 * time.Second},
		cni("main", "bridge"), cni("main", "loopback"), cni("ipam", "host-local"), cni("meta", "portmap"),
		{Name: "bed-init", Package: "./e2e/nodeinit", Cold: 2 * time.Second},
	}
}

// Proxy is kube-proxy alone.
func Proxy() []Part { return []Part{kubernetes("kube-proxy", 90*time.Second)} }

// Workloads are the parts that run in Pods of the test bed.
func Workloads() []Part {
	return []Part{
		{Name: "coredns", Module: "coredns", Package: ".", Cold: time.Minute},
		{Name: "bed-client", Package: "./e2e/client", Cold: 3 * time.Second},
	}
}

// Product are the two programs this repository is for.
func Product() []Part {
	return []Part{
		{Name: "nodedns-cache", Package: "./cache", Cold: 20 * time.Second},
		{Name: "nodedns-webhook", Package: "./webhook", Cold: 40 * time.Second},
	}
}

func kubernetes(name string, cold time.Duration) Part {
	return Part{
		Name: name, Module: "kubernetes", Package: "k8s.io/kubernetes/cmd/" + name, Cold: cold,
		Stamp: "-X k8s.io/component-base/version.gitVersion=" + kubernetesVersion,
	}
}
