package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

const manifests = "../manifests/"

// objects decodes every object in the files of a folder strictly: an unknown field is a fault.
func objects(t *testing.T, folder string) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme,
		policyv1.AddToScheme, admissionv1.AddToScheme, certmanagerv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	files, err := filepath.Glob(manifests + folder + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", folder, err)
	}
	var out []runtime.Object
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents := yaml.NewYAMLReader(newReader(text))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			object, _, err := decoder.Decode(document, nil, nil)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			out = append(out, object)
		}
	}
	return out
}

// only is the one object of a type.
func only[T runtime.Object](t *testing.T, all []runtime.Object) T {
	t.Helper()
	var found []T
	for _, object := range all {
		if typed, ok := object.(T); ok {
			found = append(found, typed)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T", len(found), *new(T))
	}
	return found[0]
}

// W02: evaluated as the API server does, the selectors leave out the system's namespaces and our own, whatever labels
// they got by mistake, and our own Pods; and a failed call never stops a Pod.
func TestW02SelectorsAndFailurePolicy(t *testing.T) {
	all := objects(t, "webhook")
	hook := only[*admissionv1.MutatingWebhookConfiguration](t, all).Webhooks[0]
	if *hook.FailurePolicy != admissionv1.Ignore || *hook.TimeoutSeconds > 2 || *hook.ReinvocationPolicy != admissionv1.IfNeededReinvocationPolicy {
		t.Errorf("failure policy %s, timeout %d s, reinvocation %s", *hook.FailurePolicy, *hook.TimeoutSeconds, *hook.ReinvocationPolicy)
	}
	selects := func(selector *metav1.LabelSelector, set labels.Set) bool {
		t.Helper()
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		return s.Matches(set)
	}
	for name, want := range map[string]bool{"shop": true, "kube-system": false, "kube-node-lease": false, "kube-public": false, "nodedns": false} {
		for label, asked := range map[string]bool{"": false, poddns.Disabled: false, poddns.Enabled: want} {
			set := labels.Set{"kubernetes.io/metadata.name": name}
			if label != "" {
				set[poddns.InjectionLabel] = label
			}
			if got := selects(hook.NamespaceSelector, set); got != asked {
				t.Errorf("namespace %s labelled %q: asked %t, want %t", name, label, got, asked)
			}
		}
	}
	deployment := only[*appsv1.Deployment](t, all)
	if selects(hook.ObjectSelector, deployment.Spec.Template.Labels) {
		t.Error("the API server would ask for our own Pods")
	}
	if !selects(hook.ObjectSelector, labels.Set{}) {
		t.Error("the API server would not ask for a Pod without labels")
	}
	namespace := only[*corev1.Namespace](t, all)
	if namespace.Labels[poddns.InjectionLabel] != poddns.Disabled {
		t.Error("our own namespace does not opt out")
	}
	// The flags that the manifest sets promise what its selector asks for: nothing opts in but a namespace.
	o := parseArgs(t, deployment)
	if o.podOptIn || o.defaultInjection != poddns.Disabled || o.namespace != namespace.Name {
		t.Errorf("flags %+v do not fit the selector", o.policy())
	}
}

// W09: without side effects, server-side dry runs and kubectl diff work.
func TestW09NoSideEffects(t *testing.T) {
	hook := only[*admissionv1.MutatingWebhookConfiguration](t, objects(t, "webhook")).Webhooks[0]
	if *hook.SideEffects != admissionv1.SideEffectClassNone {
		t.Errorf("side effects %s", *hook.SideEffects)
	}
	if len(hook.Rules) != 1 || !slices.Equal(hook.Rules[0].Operations, []admissionv1.OperationType{admissionv1.Create}) ||
		!slices.Equal(hook.Rules[0].Resources, []string{"pods"}) {
		t.Errorf("rules %+v", hook.Rules)
	}
}

func parseArgs(t *testing.T, deployment *appsv1.Deployment) options {
	t.Helper()
	o, err := parse(deployment.Spec.Template.Spec.Containers[0].Args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// The names in the manifests are those the program looks for by default.
func TestNamesAgree(t *testing.T) {
	all := objects(t, "webhook")
	deployment, hook := only[*appsv1.Deployment](t, all), only[*admissionv1.MutatingWebhookConfiguration](t, all)
	service := only[*corev1.Service](t, all)
	o := parseArgs(t, deployment)
	if hook.Name != o.configuration || service.Name != o.service || *hook.Webhooks[0].ClientConfig.Service.Path != "/mutate" ||
		hook.Webhooks[0].ClientConfig.Service.Name != service.Name || hook.Webhooks[0].ClientConfig.Service.Namespace != o.namespace {
		t.Errorf("flags %+v, webhook %+v", o, hook.Webhooks[0].ClientConfig)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	for name, address := range map[string]string{"https": o.listenAddress, "metrics": o.metricsAddress, "probes": o.probeAddress} {
		if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool {
			return p.Name == name && strings.HasSuffix(address, ":"+itoa(p.ContainerPort))
		}) {
			t.Errorf("no port %s for %s", name, address)
		}
	}
}

// An empty cluster, with every node tainted, must be able to start the webhook without asking it or any DNS.
func TestStartsInAnEmptyCluster(t *testing.T) {
	pod := only[*appsv1.Deployment](t, objects(t, "webhook")).Spec.Template.Spec
	for _, key := range []string{"node-local-dns/not-ready", "startup-taint.cluster-autoscaler.kubernetes.io/node-local-dns", "node-role.kubernetes.io/control-plane"} {
		if !slices.ContainsFunc(pod.Tolerations, func(tol corev1.Toleration) bool { return tol.Key == key }) {
			t.Errorf("taint %s is not tolerated", key)
		}
	}
	if pod.DNSPolicy != corev1.DNSClusterFirst || pod.PriorityClassName != "system-cluster-critical" {
		t.Errorf("DNS policy %s, priority %s", pod.DNSPolicy, pod.PriorityClassName)
	}
}

// The webhook's rights are these. Whoever widens them says so here. What the API cannot limit by name is the creation of
// Secrets, Leases and Events, in the own namespace only, and the Pods of kube-system, among which the caches are; what
// RBAC cannot limit in a patch of Nodes an admission policy does.
func TestLeastRights(t *testing.T) {
	want := []string{
		"cluster: get list watch namespaces",
		"cluster: get list watch nodes",
		"cluster: get list watch update mutatingwebhookconfigurations/nodedns-webhook",
		"cluster: get mutatingwebhookconfigurations/nodedns-webhook",
		"cluster: list watch networkpolicies",
		"cluster: patch nodes",
		"kube-system: list watch pods",
		"kube-system: list watch services",
		"nodedns: create events",
		"nodedns: create leases",
		"nodedns: create secrets",
		"nodedns: get list watch update secrets/nodedns-webhook-ca",
		"nodedns: get update leases/nodedns-webhook",
	}
	var got []string
	for _, folder := range []string{"webhook", "webhook/startup-taint", "self-managed"} {
		for _, object := range objects(t, folder) {
			switch role := object.(type) {
			case *rbacv1.Role:
				got = append(got, rights(role.Namespace, role.Rules)...)
			case *rbacv1.ClusterRole:
				got = append(got, rights("cluster", role.Rules)...)
				if role.AggregationRule != nil {
					t.Errorf("%s takes up rules of other roles", role.Name)
				}
			}
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, object := range objects(t, "cert-manager") {
		if _, ok := object.(*rbacv1.Role); ok {
			t.Error("with cert-manager no right to Secrets is needed")
		}
	}
}

// rights are rules in words, one for each resource and name.
func rights(where string, rules []rbacv1.PolicyRule) []string {
	var out []string
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			names := rule.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, name := range names {
				out = append(out, strings.TrimSuffix(where+": "+strings.Join(rule.Verbs, " ")+" "+resource+"/"+name, "/"))
			}
		}
	}
	return out
}

// certManagerObjects is manifests/cert-manager/certificates.yaml as cert-manager's own types.
func certManagerObjects() []any {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "nodedns", Labels: map[string]string{"app.kubernetes.io/part-of": "nodedns"}}
	}
	kind := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: certmanagerv1.SchemeGroupVersion.String(), Kind: kind}
	}
	issuer := func(name string) cmmeta.IssuerReference {
		return cmmeta.IssuerReference{Name: name, Kind: "Issuer", Group: "cert-manager.io"}
	}
	return []any{
		certmanagerv1.Issuer{TypeMeta: kind("Issuer"), ObjectMeta: meta("nodedns-webhook-selfsigned"),
			Spec: certmanagerv1.IssuerSpec{IssuerConfig: certmanagerv1.IssuerConfig{SelfSigned: &certmanagerv1.SelfSignedIssuer{}}}},
		certmanagerv1.Certificate{TypeMeta: kind("Certificate"), ObjectMeta: meta("nodedns-webhook-ca"),
			Spec: certmanagerv1.CertificateSpec{
				IsCA: true, CommonName: caName, SecretName: "nodedns-webhook-issuer", IssuerRef: issuer("nodedns-webhook-selfsigned"),
				Duration: &metav1.Duration{Duration: 10 * 365 * 24 * time.Hour},
				// With its key kept, a new CA certificate verifies what the old one signed, and the other way round: the
				// caBundle and the serving certificate need not change at the same moment.
				PrivateKey: &certmanagerv1.CertificatePrivateKey{Algorithm: certmanagerv1.ECDSAKeyAlgorithm, Size: 256, RotationPolicy: certmanagerv1.RotationPolicyNever},
			}},
		certmanagerv1.Issuer{TypeMeta: kind("Issuer"), ObjectMeta: meta("nodedns-webhook-ca"),
			Spec: certmanagerv1.IssuerSpec{IssuerConfig: certmanagerv1.IssuerConfig{CA: &certmanagerv1.CAIssuer{SecretName: "nodedns-webhook-issuer"}}}},
		certmanagerv1.Certificate{TypeMeta: kind("Certificate"), ObjectMeta: meta("nodedns-webhook"),
			Spec: certmanagerv1.CertificateSpec{
				SecretName: "nodedns-webhook-tls", IssuerRef: issuer("nodedns-webhook-ca"),
				DNSNames: []string{"nodedns-webhook", "nodedns-webhook.nodedns", "nodedns-webhook.nodedns.svc", "nodedns-webhook.nodedns.svc.cluster.local"},
				Duration: &metav1.Duration{Duration: 90 * 24 * time.Hour}, RenewBefore: &metav1.Duration{Duration: 30 * 24 * time.Hour},
				Usages:     []certmanagerv1.KeyUsage{certmanagerv1.UsageDigitalSignature, certmanagerv1.UsageServerAuth},
				PrivateKey: &certmanagerv1.CertificatePrivateKey{Algorithm: certmanagerv1.ECDSAKeyAlgorithm, Size: 256, RotationPolicy: certmanagerv1.RotationPolicyAlways},
			}},
	}
}

// The cert-manager manifests are made from its types (-update writes them) and decode strictly to the same.
func TestCertManagerManifests(t *testing.T) {
	var text bytes.Buffer
	text.WriteString("# Made from cert-manager's API types by TestCertManagerManifests -update; the CA keeps its key, so that a new CA\n# certificate and an old serving certificate fit each other.\n")
	for i, object := range certManagerObjects() {
		document, err := sigsyaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			text.WriteString("---\n")
		}
		for line := range strings.Lines(string(document)) {
			if line != "status: {}\n" && !strings.Contains(line, "creationTimestamp: null") {
				text.WriteString(line)
			}
		}
	}
	path := manifests + "cert-manager/certificates.yaml"
	if updating() {
		if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text.String(), string(got)); diff != "" {
		t.Errorf("-want +got, -update writes it anew:\n%s", diff)
	}
	issuers, certificates := 0, 0
	for _, object := range objects(t, "cert-manager") {
		switch object.(type) {
		case *certmanagerv1.Issuer:
			issuers++
		case *certmanagerv1.Certificate:
			certificates++
		}
	}
	if issuers != 2 || certificates != 2 {
		t.Errorf("%d issuers and %d certificates", issuers, certificates)
	}
	overlay, err := os.ReadFile(manifests + "cert-manager/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(overlay), certmanagerv1.WantInjectAnnotation+": nodedns/nodedns-webhook-ca") {
		t.Errorf("no annotation %s for the CA injector", certmanagerv1.WantInjectAnnotation)
	}
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the golden files anew")
	flag.Parse()
	os.Exit(m.Run())
}

func updating() bool { return flag.Lookup("update").Value.String() == "true" }
