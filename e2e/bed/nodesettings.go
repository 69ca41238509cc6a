package bed

import (
	"fmt"

	"github.com/nodedns/nodedns/e2e/agent"
	"github.com/nodedns/nodedns/e2e/archive"
)

// settings are the configuration files of the programs on a node, by file name.
func (n *Node) settings() map[string][]byte {
	shared := agent.Shared
	return map[string][]byte{
		"kubelet.yaml": fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[1]s/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: %[1]s/%[2]s-server.crt
tlsPrivateKeyFile: %[1]s/%[2]s-server.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
clusterDNS: [%[3]s]
clusterDomain: %[4]s
resolvConf: /etc/resolv.conf
staticPodPath: ""
localStorageCapacityIsolation: false
syncFrequency: 10s
nodeStatusUpdateFrequency: 5s
imageMinimumGCAge: 24h
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 10Mi}
`, shared, n.Name, DNSServiceIP, ClusterDomain),
		"containerd.toml": fmt.Appendf(nil, `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "%[1]s"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "%[2]s/runc"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["%[2]s"]
    conf_dir = "/run/cni/net.d"
`, archive.PauseImage, agent.Bin),
		// isDefaultGateway together with a default route in ipam fails ("file exists"), hence isGateway.
		"10-bridge.conflist": fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "bed", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false, "mtu": 1500,
  "ipam": {"type": "host-local", "dataDir": "/run/cni/ipam", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}
`, nodePods(n.number)),
	}
}

// proxySettings is the configuration of kube-proxy in the given mode.
func (n *Node) proxySettings(mode string) []byte {
	return fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %s/proxy.kubeconfig}
clusterCIDR: %s
hostnameOverride: %s
mode: %s
ipvs: {scheduler: rr}
conntrack: {maxPerCore: 0, min: 0}
healthzBindAddress: 0.0.0.0:10256
`, agent.Shared, PodCIDR, n.Name, mode)
}
