package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
	"github.com/nodedns/nodedns/webhook/internal/readiness"
)

// agreement compares what the MutatingWebhookConfiguration lets the API server ask with what the flags promise: a Pod
// that is never asked for cannot be injected, counted or annotated, and nothing else would tell.
type agreement struct {
	o        options
	client   kubernetes.Interface
	unproven func() int // nodes whose cache does not prove its backstop
	log      *slog.Logger
	problems atomic.Int64
	said     []string
}

// keep compares each minute until ctx ends, and says what changed.
func (a *agreement) keep(ctx context.Context) error {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		problems, err := a.o.configurationProblems(ctx, a.client)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			a.log.Debug("webhook configuration not read", "error", err)
		default:
			a.say(append(problems, a.caches()...))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// caches says what keeps -fallback-nameserver=auto from leaving out the second nameserver.
func (a *agreement) caches() []string {
	if a.o.policy().Fallback != poddns.FallbackAuto || a.unproven() == 0 {
		return nil
	}
	return []string{"-fallback-nameserver=auto leaves the second nameserver in, for the readiness probe of some caches does not ask for " + readiness.BackstopProof +
		": add the component manifests/webhook/fallback-auto"}
}

func (a *agreement) say(problems []string) {
	a.problems.Store(int64(len(problems)))
	for _, problem := range problems {
		if !slices.Contains(a.said, problem) {
			a.log.Warn("flags and webhook configuration disagree", "configuration", a.o.configuration, "problem", problem)
		}
	}
	if len(problems) == 0 && len(a.said) > 0 {
		a.log.Info("flags and webhook configuration agree", "configuration", a.o.configuration)
	}
	a.said = problems
}

// configurationProblems reads the webhook configuration and lists where it and the flags disagree.
func (o options) configurationProblems(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	configuration, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, o.configuration, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return []string{fmt.Sprintf("there is no MutatingWebhookConfiguration %s (-webhook-configuration): the API server asks for no Pod", o.configuration)}, nil
	case err != nil:
		return nil, fmt.Errorf("getting MutatingWebhookConfiguration %s: %w", o.configuration, err)
	case len(configuration.Webhooks) == 0:
		return []string{fmt.Sprintf("MutatingWebhookConfiguration %s has no webhooks: the API server asks for no Pod", o.configuration)}, nil
	}
	var problems []string
	for i := range configuration.Webhooks {
		problems = append(problems, o.disagreements(&configuration.Webhooks[i])...)
	}
	return problems, nil
}

// disagreements is configurationProblems for one webhook. matchConditions are not looked at: they only leave out what no
// flag would inject, and a test of the manifest says so.
func (o options) disagreements(hook *admissionv1.MutatingWebhook) []string {
	var problems []string
	say := func(text string) { problems = append(problems, hook.Name+": "+text) }
	namespaces, pods, err := selectors(hook)
	if err != nil {
		say(err.Error())
		return problems
	}
	asked := func(name, label string) bool {
		set := labels.Set{corev1.LabelMetadataName: name}
		if label != "" {
			set[poddns.InjectionLabel] = label
		}
		return namespaces.Matches(set)
	}
	wider := o.optsInWider()
	switch unlabelled := asked("any", ""); {
	case wider != "" && !unlabelled:
		say(wider + " promises that Pods of namespaces without the label " + poddns.InjectionLabel + " can be injected, but the namespaceSelector leaves those namespaces out: " +
			"make it NotIn [disabled], as the component manifests/webhook/pod-opt-in does, or take the flag away")
	case wider == "" && unlabelled:
		say("the namespaceSelector lets through namespaces without the label " + poddns.InjectionLabel + ", where no flag lets a Pod be injected: each creation there pays for a review in vain; " +
			"make it In [enabled], or set -pod-opt-in or -default-injection=enabled")
	}
	if !asked("any", poddns.Enabled) {
		say("the namespaceSelector leaves out namespaces labelled " + poddns.InjectionLabel + "=enabled: nothing is injected there")
	}
	for _, name := range []string{metav1.NamespaceSystem, o.namespace} {
		if asked(name, poddns.Enabled) {
			say("the namespaceSelector lets through namespace " + name + ", whose Pods must be created without the webhook: exclude it by " + corev1.LabelMetadataName)
		}
	}
	if !pods.Matches(labels.Set{}) || wider != "" && !pods.Matches(labels.Set{poddns.InjectionLabel: poddns.Enabled}) {
		say("the objectSelector leaves out Pods that are to be injected: make it " + poddns.InjectionLabel + " NotIn [disabled]")
	}
	return append(problems, o.callProblems(hook)...)
}

// callProblems lists what is wrong with when and how the API server calls.
func (o options) callProblems(hook *admissionv1.MutatingWebhook) []string {
	var problems []string
	say := func(text string) { problems = append(problems, hook.Name+": "+text) }
	if hook.FailurePolicy == nil || *hook.FailurePolicy != admissionv1.Ignore {
		say("failurePolicy is not Ignore: while no replica answers no Pod can be created")
	}
	if !slices.ContainsFunc(hook.Rules, asksForPods) {
		say("no rule asks for the creation of pods")
	}
	if s := hook.ClientConfig.Service; s != nil && (s.Name != o.service || s.Namespace != o.namespace) {
		say(fmt.Sprintf("it calls Service %s/%s, but the certificate is for %s/%s: set -namespace and -service", s.Namespace, s.Name, o.namespace, o.service))
	}
	return problems
}

func asksForPods(rule admissionv1.RuleWithOperations) bool {
	has := func(list []string, word string) bool {
		return slices.Contains(list, word) || slices.Contains(list, "*")
	}
	return has(rule.APIGroups, "") && has(rule.Resources, "pods") &&
		(slices.Contains(rule.Operations, admissionv1.Create) || slices.Contains(rule.Operations, admissionv1.OperationAll))
}

// optsInWider is the flag by which more than labelled namespaces can be injected, empty if there is none.
func (o options) optsInWider() string {
	switch {
	case o.defaultInjection == poddns.Enabled:
		return "-default-injection=enabled"
	case o.podOptIn:
		return "-pod-opt-in"
	}
	return ""
}

func selectors(hook *admissionv1.MutatingWebhook) (namespaces, pods labels.Selector, err error) {
	read := func(name string, selector *metav1.LabelSelector) labels.Selector {
		if selector == nil { // the API server's default
			return labels.Everything()
		}
		s, problem := metav1.LabelSelectorAsSelector(selector)
		if problem != nil {
			err = errors.Join(err, fmt.Errorf("reading the %s: %w", name, problem))
			return labels.Nothing()
		}
		return s
	}
	namespaces, pods = read("namespaceSelector", hook.NamespaceSelector), read("objectSelector", hook.ObjectSelector)
	return namespaces, pods, err
}
