package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodedns/nodedns/webhook/internal/readiness"
)

// auditInterval is how often audit mode sums up what it saw. The Events are no part of a review: a review has no side
// effects, which is what the webhook configuration says.
const auditInterval = time.Minute

// events writes Events about the own Deployment. Every replica notes; the leader writes.
type events struct {
	client     kubernetes.Interface
	namespace  string
	deployment string
	log        *slog.Logger
	queue      chan event

	mu      sync.Mutex
	wouldBe map[string]int // namespace → Pods that audit mode would have injected
}

type event struct {
	kind, reason, message string
	at                    time.Time
}

func newEvents(o options, client kubernetes.Interface, log *slog.Logger) *events {
	return &events{client: client, namespace: o.namespace, deployment: o.service, log: log, queue: make(chan event, 16), wouldBe: map[string]int{}}
}

// breaker notes that injecting has begun or ceased.
func (e *events) breaker(s readiness.Summary) {
	ev := event{kind: corev1.EventTypeNormal, reason: "CachesReady", message: fmt.Sprintf("%d of %d nodes have a usable cache: Pods are injected", s.Usable, s.Nodes)}
	if !s.On {
		ev = event{kind: corev1.EventTypeWarning, reason: "CachesNotReady", message: fmt.Sprintf("only %d of %d nodes have a usable cache: Pods are left as they are", s.Usable, s.Nodes)}
	}
	e.log.Info("breaker turned", "open", !s.On, "usable", s.Usable, "nodes", s.Nodes, "meaning", ev.message)
	e.note(ev)
}

// outage notes that the picture of the cluster is not kept any more, or with nil that it is again. Where the API server is
// away altogether the first of the two is written late or never.
func (e *events) outage(o *outage) {
	if o != nil {
		e.note(event{kind: corev1.EventTypeWarning, reason: "StateOld", message: o.why + ": Pods are decided on by the last known state"})
		return
	}
	e.note(event{kind: corev1.EventTypeNormal, reason: "StateCurrent", message: "the state of the cluster is kept again"})
}

// audited counts a Pod that would have been injected.
func (e *events) audited(namespace string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wouldBe[namespace]++
}

func (e *events) note(ev event) {
	ev.at = time.Now()
	select {
	case e.queue <- ev:
	default: // the API server is slow or away; the metric and the log say the same
	}
}

// keep sums up audit mode until ctx ends.
func (e *events) keep(ctx context.Context) error {
	ticker := time.NewTicker(auditInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			e.sumUp()
		}
	}
}

func (e *events) sumUp() {
	e.mu.Lock()
	counts := e.wouldBe
	e.wouldBe = map[string]int{}
	e.mu.Unlock()
	if len(counts) == 0 {
		return
	}
	var parts []string
	for namespace, n := range counts {
		parts = append(parts, fmt.Sprintf("%s %d", namespace, n))
	}
	slices.Sort(parts)
	message := "audit: Pods that would have been injected in the last minute: " + strings.Join(parts, ", ")
	if len(message) > 1000 { // the API takes 1024
		message = message[:1000] + " …"
	}
	e.note(event{kind: corev1.EventTypeNormal, reason: "WouldInject", message: message})
}

// write writes what was noted until ctx ends. What a replica noted long before it came to lead, the leader of then has
// written.
func (e *events) write(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-e.queue:
			if time.Since(ev.at) > auditInterval {
				continue
			}
			if err := e.create(ctx, ev); err != nil && ctx.Err() == nil {
				e.log.Warn("Event not written", "reason", ev.reason, "error", err)
			}
		}
	}
}

func (e *events) create(ctx context.Context, ev event) error {
	at := metav1.NewTime(ev.at)
	_, err := e.client.CoreV1().Events(e.namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: e.deployment + "-", Namespace: e.namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: e.namespace, Name: e.deployment},
		Type:           ev.kind, Reason: ev.reason, Message: ev.message,
		Source:         corev1.EventSource{Component: "nodedns-webhook"},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}, metav1.CreateOptions{})
	return err
}
