package webhook_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/host"
)

// short lives of certificates: the CA is replaced after 40 to 50 s, a certificate after 20 s.
func shortLives() []string {
	return []string{"-ca-duration=60s", "-cert-duration=30s", "-cert-overlap=5s", "-shutdown-delay=3s"}
}

// W03: leaf and CA are replaced under continuous admission, two replicas serve, and no call fails; the Secret may be
// deleted or corrupted, and replicas may be replaced.
func TestW03RotationUnderAdmission(t *testing.T) {
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
		time.Sleep(8 * time.Second)
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
	for _, old := range []*replica{a, b} {
		next := c.webhook(old.name+"-next", old.port+100, shortLives()...).await()
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

// What takes the trust or the webhook away costs injections for a moment, never a Pod, and mends itself.
func TestDisturbedUnderAdmission(t *testing.T) {
	c := newCluster(t, bed.Config{Name: "disturbed"}, "self-managed")
	c.namespace("shop", enabled(), nil)
	c.nodes(2)
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
		c.kubectl("apply", "-k", "../../manifests/self-managed")
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
func TestAPIServerRestart(t *testing.T) {
	c := newCluster(t, bed.Config{Name: "restart"}, "self-managed")
	c.namespace("shop", enabled(), nil)
	c.nodes(2)
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
