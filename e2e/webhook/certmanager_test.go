package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	certmanager "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

// cert-manager's own controllers and CA injector make of our manifests what the webhook needs, and renew certificate and
// CA under continuous admission without a failed call. Two replicas read their files as from a mounted Secret.
func TestCertManager(t *testing.T) {
	t.Parallel()
	bin, err := parts.Build(t.Context(), console.New(t.Output()), []parts.Part{{Name: "certmanager", Module: "certmanager", Package: ".", Cold: 3 * time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	c := newClusterWith(t, bed.Config{Name: "certmanager", APIServerOnly: true}, func(c *cluster) {
		module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager").Output()
		if err != nil {
			t.Fatalf("finding cert-manager's resource definitions: %v", err)
		}
		for _, kind := range []string{"certificaterequests", "certificates", "clusterissuers", "issuers"} {
			c.kubectl("apply", "--server-side", "-f", filepath.Join(strings.TrimSpace(string(module)), "deploy/crds/cert-manager.io_"+kind+".yaml"))
		}
		for _, kind := range []string{"challenges", "orders"} {
			c.kubectl("apply", "--server-side", "-f", filepath.Join(strings.TrimSpace(string(module)), "deploy/crds/acme.cert-manager.io_"+kind+".yaml"))
		}
		c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
		c.kubectl("apply", "-k", manifests+"cert-manager")
	})
	c.namespace("shop", enabled(), nil)
	c.nodes(2)
	c.namespace("kube-system", nil, nil)
	manager, err := c.cp.Start(host.Command{Name: "certmanager", Path: bin + "/certmanager", Args: []string{"-kubeconfig=" + c.cp.InnerKubeconfig()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		manager.Stop(5 * time.Second)
		if t.Failed() {
			t.Logf("the log of cert-manager ends:\n%s", host.Tail(c.cp.Workspace().Path("certmanager.log"), 20))
		}
	})

	start := func(name string, port int, lag time.Duration) *replica {
		folder := c.mountSecret("nodedns-webhook-tls", name, lag)
		return c.webhook(name, port, "-certs=files", "-cert-file="+folder+"/tls.crt", "-key-file="+folder+"/tls.key")
	}
	a, b := start("hook-a", 8443, time.Second), start("hook-b", 9443, 4*time.Second)
	a.await()
	b.await()
	c.until("the CA injector", func(context.Context) error {
		if c.bundle() == "" {
			return errors.New("no caBundle")
		}
		return nil
	})
	c.untilInjected("shop")

	client, err := certmanager.NewForConfig(c.cp.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	before := c.failOpen()
	tr := c.traffic("shop", 50*time.Millisecond)
	for i, name := range []string{"nodedns-webhook", "nodedns-webhook-ca", "nodedns-webhook", "nodedns-webhook-ca"} {
		bundle := c.bundle()
		c.renew(client, name)
		t.Logf("%s is renewed", name)
		if name == "nodedns-webhook-ca" {
			c.until("the new CA in the caBundle", func(context.Context) error {
				if c.bundle() == bundle {
					return errors.New("it is the old one")
				}
				return nil
			})
		}
		for _, r := range []*replica{a, b} {
			c.until(r.name+" to serve the new certificate", func(context.Context) error {
				if n, want := r.takenUp(), 2+i/2; n < want {
					return fmt.Errorf("it has taken up %d, want %d", n, want)
				}
				return nil
			})
		}
		time.Sleep(2 * time.Second) // 40 calls with the new, for both
	}
	tr.wantClean(t, before)
	for _, r := range []*replica{a, b} {
		if n := r.takenUp(); n != 3 {
			t.Errorf("%s took up %d certificates, want the first and two renewed", r.name, n)
		}
	}
}

// takenUp is how many serving certificates the replica has had, by its log.
func (r *replica) takenUp() int {
	return strings.Count(host.Tail(r.c.cp.Workspace().Path(r.name+".log"), 100_000), "serving certificate taken up")
}

// renew asks cert-manager for a new certificate, as its command line tool does, and waits for it.
func (c *cluster) renew(client certmanager.Interface, name string) {
	c.t.Helper()
	certificates := client.CertmanagerV1().Certificates(ownNamespace)
	certificate, err := certificates.Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	revision := *certificate.Status.Revision
	now := metav1.Now()
	certificate.Status.Conditions = append(certificate.Status.Conditions, certmanagerv1.CertificateCondition{
		Type: certmanagerv1.CertificateConditionIssuing, Status: cmmeta.ConditionTrue, Reason: "ManuallyTriggered", LastTransitionTime: &now})
	if _, err := certificates.UpdateStatus(c.t.Context(), certificate, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.until("certificate "+name+" to be renewed", func(ctx context.Context) error {
		now, err := certificates.Get(ctx, name, metav1.GetOptions{})
		if err == nil && (now.Status.Revision == nil || *now.Status.Revision == revision) {
			err = fmt.Errorf("revision is still %d", revision)
		}
		return err
	})
}

// mountSecret keeps a folder as kubelet keeps a mounted Secret: late, and by a swap of links.
func (c *cluster) mountSecret(secret, name string, lag time.Duration) string {
	c.t.Helper()
	folder := c.cp.Workspace().Path(name + "-certs")
	if err := os.Mkdir(folder, 0o755); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(lag)
		defer ticker.Stop()
		var written []byte
		for version := 0; ; {
			if s, err := c.client.CoreV1().Secrets(ownNamespace).Get(ctx, secret, metav1.GetOptions{}); err == nil && !bytes.Equal(written, s.Data[corev1.TLSCertKey]) {
				version++
				if err := swap(folder, version, s.Data); err != nil {
					c.t.Errorf("writing the files of %s: %v", name, err)
				}
				written = s.Data[corev1.TLSCertKey]
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	c.t.Cleanup(func() { cancel(); <-done })
	return folder
}

func swap(folder string, version int, data map[string][]byte) error {
	dated := fmt.Sprintf("..2026_%d", version)
	if err := os.Mkdir(filepath.Join(folder, dated), 0o755); err != nil {
		return err
	}
	for key, value := range data {
		if err := os.WriteFile(filepath.Join(folder, dated, key), value, 0o600); err != nil {
			return err
		}
	}
	if err := os.Symlink(dated, filepath.Join(folder, "..data_tmp")); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")); err != nil {
		return err
	}
	for key := range data {
		if err := os.Symlink("..data/"+key, filepath.Join(folder, key)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return os.RemoveAll(filepath.Join(folder, fmt.Sprintf("..2026_%d", version-1)))
}
