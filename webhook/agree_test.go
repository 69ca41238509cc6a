package main

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// shippedWebhook is the one of manifests/webhook, optionally with the selector of the component pod-opt-in.
func shippedWebhook(t *testing.T, wide bool) *admissionv1.MutatingWebhookConfiguration {
	t.Helper()
	configuration := only[*admissionv1.MutatingWebhookConfiguration](t, objects(t, "webhook"))
	if wide {
		configuration.Webhooks[0].NamespaceSelector.MatchExpressions[0] = metav1.LabelSelectorRequirement{
			Key: poddns.InjectionLabel, Operator: metav1.LabelSelectorOpNotIn, Values: []string{poddns.Disabled}}
	}
	return configuration
}

// The selector and what the flags promise agree as shipped, and where they do not the message says what to change.
func TestSelectorAndFlagsAgree(t *testing.T) {
	for name, tt := range map[string]struct {
		flags  string
		wide   bool
		change func(*admissionv1.MutatingWebhook)
		want   []string // in each problem, in order
	}{
		"as shipped":              {"", false, nil, nil},
		"Pods opt in":             {"-pod-opt-in", true, nil, nil},
		"on by default":           {"-default-injection=enabled", true, nil, nil},
		"audit":                   {"-audit", false, nil, nil},
		"Pods opt in, narrow":     {"-pod-opt-in", false, nil, []string{"-pod-opt-in promises"}},
		"on by default, narrow":   {"-default-injection=enabled", false, nil, []string{"-default-injection=enabled promises"}},
		"wide for nothing":        {"", true, nil, []string{"pays for a review in vain"}},
		"another own namespace":   {"-namespace=dns", false, nil, []string{"lets through namespace dns", "Service nodedns/nodedns-webhook, but the certificate is for dns/nodedns-webhook"}},
		"no namespace selector":   {"", false, func(h *admissionv1.MutatingWebhook) { h.NamespaceSelector = nil }, []string{"in vain", "namespace kube-system", "namespace nodedns"}},
		"another label":           {"", false, func(h *admissionv1.MutatingWebhook) { h.NamespaceSelector.MatchExpressions[0].Key = "dns" }, []string{"labelled " + poddns.InjectionLabel + "=enabled"}},
		"chosen Pods only":        {"", false, func(h *admissionv1.MutatingWebhook) { h.ObjectSelector.MatchLabels = map[string]string{"a": "b"} }, []string{"objectSelector"}},
		"a selector that is none": {"", false, func(h *admissionv1.MutatingWebhook) { h.ObjectSelector.MatchExpressions[0].Operator = "Like" }, []string{"reading the objectSelector"}},
		"fails closed":            {"", false, func(h *admissionv1.MutatingWebhook) { *h.FailurePolicy = admissionv1.Fail }, []string{"failurePolicy"}},
		"asks for updates only": {"", false, func(h *admissionv1.MutatingWebhook) {
			h.Rules[0].Operations = []admissionv1.OperationType{admissionv1.Update}
		}, []string{"no rule"}},
		"by address, as out of a Pod": {"", false, func(h *admissionv1.MutatingWebhook) { h.ClientConfig.Service = nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(strings.Fields(tt.flags), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			configuration := shippedWebhook(t, tt.wide)
			if tt.change != nil {
				tt.change(&configuration.Webhooks[0])
			}
			got, err := o.configurationProblems(t.Context(), fake.NewClientset(configuration))
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(tt.want) {
				t.Fatalf("problems %q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(got[i], want) || !strings.HasPrefix(got[i], "inject.nodedns.io: ") {
					t.Errorf("problem %q, want %q", got[i], want)
				}
			}
		})
	}
}

// A disagreement is logged once and counted while it lasts.
func TestDisagreementIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	a := &agreement{log: slog.New(slog.NewTextHandler(&log, nil))}
	o, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	missing, err := o.configurationProblems(t.Context(), fake.NewClientset())
	if err != nil || len(missing) != 1 || !strings.Contains(missing[0], "there is no MutatingWebhookConfiguration nodedns-webhook") {
		t.Errorf("without a configuration: %q, %v", missing, err)
	}
	a.say(missing)
	a.say(missing)
	if n := strings.Count(log.String(), "\n"); n != 1 || a.problems.Load() != 1 {
		t.Errorf("%d problems, log:\n%s", a.problems.Load(), log.String())
	}
	a.say(nil)
	a.say(nil)
	if n := strings.Count(log.String(), "\n"); n != 2 || a.problems.Load() != 0 {
		t.Errorf("%d problems, log:\n%s", a.problems.Load(), log.String())
	}
}

// The flag alone does not leave the second nameserver out; what is missing is said.
func TestAutoWithoutItsProofIsSaid(t *testing.T) {
	for flags, want := range map[string]map[int]int{"": {0: 0, 3: 0}, "-fallback-nameserver=auto": {0: 0, 3: 1}} {
		o, err := parse(strings.Fields(flags), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		for unproven, problems := range want {
			a := &agreement{o: o, unproven: func() int { return unproven }}
			if got := a.caches(); len(got) != problems || problems > 0 && !strings.Contains(got[0], "fallback-auto") {
				t.Errorf("flags %q with %d nodes unproven: %q", flags, unproven, got)
			}
		}
	}
}
