package bed

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/pki"
)

// keys are the certificates, keys and kubeconfigs of one cluster, as files in its run folder.
type keys struct {
	ws      *host.Workspace
	ca      *pki.Authority
	admin   pki.Pair
	server  string // the API server's URL for programs on the host
	outside string
	inside  string
}

// writeKeys makes everything the control plane needs. address is where the host reaches the API server.
func writeKeys(ws *host.Workspace, address string) (*keys, error) {
	ca, err := pki.NewAuthority("nodedns-bed")
	if err != nil {
		return nil, err
	}
	k := &keys{ws: ws, ca: ca, server: "https://" + address}
	if err := k.write("ca.crt", ca.Cert()); err != nil {
		return nil, err
	}
	private, public, err := pki.SigningKey()
	if err != nil {
		return nil, err
	}
	if err := k.write("sa.key", private); err != nil {
		return nil, err
	}
	if err := k.write("sa.pub", public); err != nil {
		return nil, err
	}
	_, err = k.pair("apiserver", pki.Request{
		CommonName: "kube-apiserver",
		DNSNames:   []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + ClusterDomain},
		IPs:        []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(ControlPlaneIP), net.ParseIP("10.96.0.1")},
	})
	if err != nil {
		return nil, err
	}
	if k.admin, err = k.identity("admin", "admin", "system:masters"); err != nil {
		return nil, err
	}
	for name, user := range map[string]string{
		"controller-manager": "system:kube-controller-manager", "scheduler": "system:kube-scheduler", "proxy": "system:kube-proxy",
	} {
		if _, err := k.identity(name, user, ""); err != nil {
			return nil, err
		}
	}
	k.inside = k.file("admin.kubeconfig")
	k.outside = k.file("host.kubeconfig")
	return k, k.kubeconfig(k.outside, k.server, k.admin)
}

// node makes the identity of a kubelet: what it tells the API server, and what it serves with.
func (k *keys) node(name string, ip netip.Addr) error {
	if _, err := k.identity(name, "system:node:"+name, "system:nodes"); err != nil {
		return err
	}
	_, err := k.pair(name+"-server", pki.Request{CommonName: name, DNSNames: []string{name}, IPs: []net.IP{ip.AsSlice()}})
	return err
}

// identity makes a certificate for user and a kubeconfig that uses it from inside.
func (k *keys) identity(name, user, group string) (pki.Pair, error) {
	p, err := k.pair(name, pki.Request{CommonName: user, Organization: group})
	if err != nil {
		return p, err
	}
	return p, k.kubeconfig(k.file(name+".kubeconfig"), fmt.Sprintf("https://%s:%d", ControlPlaneIP, apiPort), p)
}

func (k *keys) pair(name string, r pki.Request) (pki.Pair, error) {
	p, err := k.ca.Issue(r)
	if err != nil {
		return p, err
	}
	if err := k.write(name+".crt", p.Cert); err != nil {
		return p, err
	}
	return p, k.write(name+".key", p.Key)
}

func (k *keys) kubeconfig(path, server string, p pki.Pair) error {
	c := api.NewConfig()
	c.Clusters["bed"] = &api.Cluster{Server: server, CertificateAuthorityData: k.ca.Cert()}
	c.AuthInfos["me"] = &api.AuthInfo{ClientCertificateData: p.Cert, ClientKeyData: p.Key}
	c.Contexts["bed"] = &api.Context{Cluster: "bed", AuthInfo: "me"}
	c.CurrentContext = "bed"
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}

func (k *keys) restConfig() *rest.Config {
	return &rest.Config{
		Host: k.server,
		QPS:  -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: k.ca.Cert(), CertData: k.admin.Cert, KeyData: k.admin.Key,
		},
	}
}

func (k *keys) file(name string) string { return k.ws.Path(name) }

func (k *keys) write(name string, text []byte) error {
	if err := os.WriteFile(k.file(name), text, 0o600); err != nil {
		return fmt.Errorf("writing keys: %w", err)
	}
	return nil
}
