package webhook_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/host"
)

// short lives of certificates: the CA is replaced after 20 to 30 s, a certificate after 8 s.
func shortLives() []string {
	return []string{"-ca-duration=30s", "-cert-duration=12s", "-cert-overlap=3s", "-shutdown-delay=2s"}
}

// W03: leaf and CA are replaced under continuous admission, two replicas serve, and no call fails; the Secret may be
// deleted or corrupted, and replicas may be replaced.
func TestW03RotationUnderAdmission(t *testing.T) {
	t.Parallel()
	c := newCluster(t, bed.Config{Name: "rotation"}, "self-managed")
	c.namespace("shop", enabled(), nil)
	c.nodes(2)
	// Both start at once, with no CA there yet.
	a, b := c.webhook("hook-a", 8443, shortLives()...), c.webhook("hook-b", 9443, shortLives()...)
	a.await()
	b.await()
	c.untilInjected("shop")

	seen := map[string]bool{c.bundle(): true}
	changed := func(what string) {
		t.Helper()
		c.until(what, func(context.Context) error {
			if bundle := c.bundle(); !seen[bundle] && bundle != "" {
				seen[bundle] = true
				return nil
			}
			return errors.New("the caBundle is as it was")
		})
	}
	before := c.failOpen()
	tr := c.traffic("shop", 50*time.Millisecond)
	secrets := c.client.CoreV1().Secrets(ownNamespace)
	settle := func() { // the new CA is known, its certificates are taken up, and the other endpoint has had its turn
		time.Sleep(5 * time.Second)
	}

	t.Log("the Secret is deleted")
	if err := secrets.Delete(t.Context(), "nodedns-webhook-ca", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	changed("a CA after the Secret was deleted")
	settle()
	for _, garbage := range []string{"garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		t.Log("the Secret is corrupted")
		secret, err := secrets.Get(t.Context(), "nodedns-webhook-ca", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		secret.Data["tls.crt"], secret.Data["ca.crt"] = []byte(garbage), []byte(garbage)
		if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		changed("a CA after the Secret was corrupted")
		settle()
	}
	t.Log("the CA ages")
	changed("a CA after the old one aged")
	settle()
	t.Log("one replica after the other is replaced")
	nextA, nextB := c.webhook("hook-a-next", 8543, shortLives()...), c.webhook("hook-b-next", 9543, shortLives()...)
	for _, turn := range [][2]*replica{{a, nextA}, {b, nextB}} {
		old, next := turn[0], turn[1].await()
		if err := old.process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-old.process.Done()
		if next.ready() != nil {
			t.Errorf("%s is not ready", next.name)
		}
	}
	tr.wantClean(t, before)
	if n := strings.Count(c.bundle(), "BEGIN CERTIFICATE"); n > 4 {
		t.Errorf("%d authorities in the caBundle: old ones are not taken away", n)
	}
	c.noKeysInLogs()
}

// replaceCA puts a CA into the Secret as a replica would make it whose clock is ahead of the API server's.
func (c *cluster) replaceCA(t *testing.T, ahead time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Add(ahead)
	template := &x509.Certificate{SerialNumber: big.NewInt(begin.UnixNano()), Subject: pkix.Name{CommonName: "nodedns-webhook-ca"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: begin, NotAfter: begin.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := c.client.CoreV1().Secrets(ownNamespace).Get(t.Context(), "nodedns-webhook-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret.Data = map[string][]byte{"tls.crt": certificate, "ca.crt": certificate, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
	if _, err := c.client.CoreV1().Secrets(ownNamespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Both leave a control plane as they found it.
func TestDisturbances(t *testing.T) {
	t.Parallel()
	c := newCluster(t, bed.Config{Name: "disturbances"}, "self-managed")
	c.namespace("shop", enabled(), nil)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"trust or replicas are taken away", disturbedUnderAdmission},
		{"a CA is made by a clock that is ahead", clockAhead},
		{"the API server restarts", apiServerRestart},
		{"the watches break while Pods are still reviewed", outage},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.under(t).nodes(2)
			test.run(t, c)
		})
	}
}

// A CA that is not valid yet, by the API server's clock and the replicas', is trusted at once and served under once it is
// valid: no call fails.
func clockAhead(t *testing.T, c *cluster) {
	flags := []string{"-cert-overlap=2s"}
	a, b := c.webhook("ahead-a", 8443, flags...), c.webhook("ahead-b", 9443, flags...)
	a.await()
	b.await()
	c.untilInjected("shop")
	before := c.failOpen()
	tr := c.traffic("shop", 50*time.Millisecond)
	begin := time.Now()
	c.replaceCA(t, 6*time.Second)
	for _, r := range []*replica{a, b} {
		c.until(r.name+" to serve under the new CA", func(context.Context) error {
			if n := r.takenUp(); n < 2 {
				return fmt.Errorf("it has taken up %d certificates", n)
			}
			return nil
		})
	}
	if took := time.Since(begin); took < 6*time.Second {
		t.Errorf("served under a CA %s before it was valid", 6*time.Second-took)
	}
	time.Sleep(time.Second) // some calls with it
	tr.wantClean(t, before)
}

// What takes the trust or the webhook away costs injections for a moment, never a Pod, and mends itself.
func disturbedUnderAdmission(t *testing.T, c *cluster) {
	flags := []string{"-cert-overlap=2s"}
	a, b := c.webhook("hook-a", 8443, flags...).await(), c.webhook("hook-b", 9443, flags...).await()
	c.untilInjected("shop")
	tr := c.traffic("shop", 20*time.Millisecond)

	t.Run("the caBundle is cleared by a re-apply", func(t *testing.T) {
		_, _, missed := tr.counts()
		c.kubectl("patch", "mutatingwebhookconfiguration", "nodedns-webhook", "--type=json", `-p=[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
		c.until("the caBundle to be back", func(context.Context) error {
			if c.bundle() == "" {
				return errors.New("empty")
			}
			return nil
		})
		c.untilInjected("shop")
		c.kubectl("apply", "-k", manifests+"self-managed")
		if c.bundle() == "" {
			t.Error("an apply of the same manifests clears the caBundle")
		}
		_, _, now := tr.counts()
		t.Logf("%d Pods were not injected meanwhile", now-missed)
	})
	for _, victim := range []*replica{a, b} {
		t.Run(victim.name+" is killed", func(t *testing.T) {
			_, _, missed := tr.counts()
			if err := victim.process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-victim.process.Done()
			c.until("the other replica to take over", func(ctx context.Context) error {
				for range 10 {
					if p, err := c.dryRun(ctx, "shop"); err != nil || !injected(p) {
						return errNotInjected
					}
				}
				return nil
			})
			_, _, now := tr.counts()
			t.Logf("%d Pods were not injected meanwhile", now-missed)
			c.webhook(victim.name+"-again", victim.port+100, flags...).await()
		})
	}
	tr.stop()
	if len(tr.failed) > 0 {
		t.Errorf("%d of %d Pods could not be created: %s", len(tr.failed), tr.created, tr.failed[0])
	}
	t.Logf("%d Pods created, %d of them not injected", tr.created, len(tr.notInjected))
}

// An API server that restarts finds the webhook as it was; while it is away the webhook says that it decides by what it
// last knew.
func apiServerRestart(t *testing.T, c *cluster) {
	hook := c.webhook("hook-a", 8443, "-cert-overlap=2s", "-replace-grace=0s").await()
	c.untilInjected("shop")

	c.cp.StopAPIServer()
	c.until("the webhook to say that the API server is away", func(context.Context) error {
		if strings.Contains(hook.metrics(), "\nnodedns_webhook_state_age_seconds 0\n") {
			return errors.New("it does not")
		}
		return nil
	})
	if err := hook.ready(); err != nil {
		t.Errorf("not ready while the API server is away: %v", err)
	}
	if answer := hook.review(t, "shop"); !strings.Contains(answer, `"patch"`) {
		t.Errorf("a review while the API server is away is answered %s", answer)
	}
	if err := c.cp.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	tr := c.traffic("shop", 20*time.Millisecond)
	c.untilInjected("shop")
	t.Logf("injecting again %s after the API server was ready", time.Since(begin).Round(time.Millisecond))
	c.cache("n0", false)
	c.cache("n1", false)
	c.until("news to reach the webhook again", func(context.Context) error {
		text := hook.metrics()
		if !strings.Contains(text, "\nnodedns_webhook_state_age_seconds 0\n") || !strings.Contains(text, "\nnodedns_webhook_breaker_open 1\n") {
			return errors.New("not yet")
		}
		return nil
	})
	tr.stop()
	if len(tr.failed) > 0 {
		t.Errorf("%d of %d Pods could not be created: %s", len(tr.failed), tr.created, tr.failed[0])
	}
}

// bundle is the caBundle in the webhook configuration.
func (c *cluster) bundle() string {
	c.t.Helper()
	configuration, err := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(c.t.Context(), "nodedns-webhook", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return string(configuration.Webhooks[0].ClientConfig.CABundle)
}

// noKeysInLogs reads the logs of all replicas for anything like a key.
func (c *cluster) noKeysInLogs() {
	c.t.Helper()
	secret, err := c.client.CoreV1().Secrets(ownNamespace).Get(c.t.Context(), "nodedns-webhook-ca", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	block, _ := pem.Decode(secret.Data["tls.key"])
	if block == nil {
		c.t.Fatal("no key in the Secret")
	}
	line := bytes.SplitN(secret.Data["tls.key"], []byte("\n"), 3)[1]
	for _, r := range c.replicas {
		text, err := os.ReadFile(c.cp.Workspace().Path(r.name + ".log"))
		if err != nil {
			c.t.Fatal(err)
		}
		if bytes.Contains(text, []byte("PRIVATE KEY")) || bytes.Contains(text, line) {
			c.t.Errorf("%s logs keys", r.name)
		}
	}
}

func hostTail(path string, lines int) string { return host.Tail(path, lines) }
