package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Of two API servers the webhook is connected to one, and that one goes, and comes back without the right to watch: the
// other goes on asking for every Pod, is answered by the last known state, and is told so by metric, log, condition and
// Event.
func outage(t *testing.T, c *cluster) {
	kubeconfig, err := c.cp.StartSecondAPIServer(t.Context(), c.token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.cp.StopSecondAPIServer)
	own := c.token
	c.token = kubeconfig
	defer func() { c.token = own }()
	hook := c.webhook("hook-a", 8443, "-cert-overlap=2s", "-replace-grace=0s").await()
	c.untilInjected("shop")
	bothReview(t, c)

	before := c.failOpen()
	tr := c.traffic("shop", 50*time.Millisecond)
	c.kubectl("delete", "clusterrolebinding", "nodedns-webhook") // noticed only when a watch is opened anew
	c.cp.StopSecondAPIServer()
	c.until("the webhook to say that its picture is old", func(context.Context) error {
		if text := hook.readyText(); !strings.Contains(text, "5 of 5 watches are broken") {
			return errors.New(text)
		}
		return nil
	})
	wantOld(t, hook, "5 of 5 watches are broken")
	c.cache("n0", false)
	c.cache("n1", false) // nobody learns of it
	seen, _, _ := tr.counts()
	c.until("Pods to be reviewed by what was last known", func(context.Context) error {
		if now, _, _ := tr.counts(); now < seen+40 {
			return fmt.Errorf("%d more", now-seen)
		}
		return nil
	})
	tr.wantClean(t, before) // until the watch of the cache Pods, a right of its own, comes back

	errorsSeen := hook.metric("nodedns_webhook_watch_errors_total")
	if _, err := c.cp.StartSecondAPIServer(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	c.until("the watches to be refused", func(context.Context) error {
		if strings.Contains(hook.readyText(), "3 of 5 watches are broken") && hook.metric("nodedns_webhook_watch_errors_total") > errorsSeen {
			return nil
		}
		return errors.New(hook.readyText())
	})
	wantOld(t, hook, "/api/v1/nodes")
	if _, err := c.dryRun(t.Context(), "shop"); err != nil {
		t.Errorf("a Pod cannot be created while some watches are refused: %v", err)
	}

	c.kubectl("apply", "-k", manifests+"self-managed")
	c.until("news to reach the webhook again", func(context.Context) error {
		text := hook.metrics()
		if !strings.Contains(text, "\nnodedns_webhook_state_age_seconds 0\n") || !strings.Contains(text, "\nnodedns_webhook_breaker_open 1\n") {
			return errors.New(hook.readyText())
		}
		return nil
	})
	if text := hook.readyText(); !strings.Contains(text, "StateCurrent=True") {
		t.Errorf("/readyz afterwards: %s", text)
	}
	c.until("the Event about it", func(context.Context) error {
		if events := c.kubectl("-n", ownNamespace, "get", "events", "-o", "custom-columns=R:.reason"); !strings.Contains(events, "StateCurrent") {
			return errors.New(events)
		}
		return nil
	})
}

// bothReview wants a Pod injected through either API server.
func bothReview(t *testing.T, c *cluster) {
	t.Helper()
	config := c.cp.SecondRESTConfig()
	config.WarningHandler = rest.NoWarnings{}
	second, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	first := c.client
	defer func() { c.client = first }()
	for name, client := range map[string]*kubernetes.Clientset{"first": first, "second": second} {
		c.client = client
		if p, err := c.dryRun(t.Context(), "shop"); err != nil || !injected(p) {
			t.Errorf("through the %s API server: %v, %v", name, p, err)
		}
	}
}

// wantOld wants a replica to be in service and to say in each way that what it knows is old, and why.
func wantOld(t *testing.T, hook *replica, why string) {
	t.Helper()
	text, err := hook.get(2, "/readyz")
	if err != nil || !strings.Contains(text, "StateCurrent=False") || !strings.Contains(text, why) {
		t.Errorf("/readyz: %v, %s", err, text)
	}
	if age := hook.metric("nodedns_webhook_state_age_seconds"); age <= 0 {
		t.Errorf("age of the state %v", age)
	}
	if log := hostTail(hook.c.cp.Workspace().Path(hook.name+".log"), 10_000); !strings.Contains(log, "going on with the last known") {
		t.Errorf("its log does not say so:\n%s", log)
	}
}
