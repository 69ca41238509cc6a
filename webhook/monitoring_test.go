package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/nodedns/nodedns/e2e/house"
)

// The kinds of the Prometheus Operator as far as the manifests use them; what is not declared here is a fault, as with
// its own types.
type (
	podMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector            metav1.LabelSelector `json:"selector"`
			PodMetricsEndpoints []struct {
				Port string `json:"port"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	prometheusRule struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Groups []struct {
				Name  string `json:"name"`
				Rules []struct {
					Alert       string            `json:"alert"`
					Expr        string            `json:"expr"`
					For         metav1.Duration   `json:"for"`
					Labels      map[string]string `json:"labels"`
					Annotations map[string]string `json:"annotations"`
				} `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
)

func monitoring[T any](t *testing.T, file, kind string) T {
	t.Helper()
	text, err := os.ReadFile(manifests + "monitoring/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var out T
	if err := sigsyaml.UnmarshalStrict(text, &out); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if !strings.Contains(string(text), "apiVersion: monitoring.coreos.com/v1\nkind: "+kind+"\n") {
		t.Errorf("%s is no %s of the Prometheus Operator", file, kind)
	}
	return out
}

// exported are the names of all metrics of both programs: of this one as registered, of the cache as its own test of the
// README has them.
func exported(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, cache, found := strings.Cut(string(readme), "# Metrics of nodedns-cache\n")
	cache, _, ended := strings.Cut(cache, "\n#")
	if !found || !ended {
		t.Fatal("the README has no metrics of nodedns-cache")
	}
	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(house.Metrics(allMetrics(), "nodedns_")+cache, -1) {
		names = append(names, row[1])
	}
	return names
}

// Every metric in the alerts is one that the programs export, and every alert says what to know.
func TestAlertsNameMetricsThatThereAre(t *testing.T) {
	names := exported(t)
	metric := regexp.MustCompile(`\b(?:nodedns|coredns)_[a-z_]+`)
	alerts := 0
	for _, file := range []string{"rules.yaml", "cache-rules.yaml"} {
		for _, group := range monitoring[prometheusRule](t, file, "PrometheusRule").Spec.Groups {
			for _, rule := range group.Rules {
				alerts++
				used := metric.FindAllString(rule.Expr, -1)
				if len(used) == 0 {
					t.Errorf("%s: no metric of ours in %q", rule.Alert, rule.Expr)
				}
				for _, name := range used {
					if !slices.Contains(names, name) {
						t.Errorf("%s: %s is not exported", rule.Alert, name)
					}
				}
				if rule.Alert == "" || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
					t.Errorf("%+v lacks a name, a severity or a summary", rule)
				}
			}
		}
	}
	if alerts < 8 || len(names) < 60 {
		t.Errorf("%d alerts, %d names: not all were read", alerts, len(names))
	}
}

// What is scraped are the Pods of our manifests, at a port that they have.
func TestMonitorsSelectOurPods(t *testing.T) {
	deployment := only[*appsv1.Deployment](t, objects(t, "webhook"))
	daemonSet := only[*appsv1.DaemonSet](t, objects(t, "cache"))
	for file, target := range map[string]struct {
		namespace string
		template  corev1.PodTemplateSpec
		port      int32
	}{
		"webhook.yaml": {deployment.Namespace, deployment.Spec.Template, 8080},
		"cache.yaml":   {daemonSet.Namespace, daemonSet.Spec.Template, 9253},
	} {
		monitor := monitoring[podMonitor](t, file, "PodMonitor")
		selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		if monitor.Namespace != target.namespace || !selector.Matches(labels.Set(target.template.Labels)) || selector.Empty() {
			t.Errorf("%s: namespace %s, selector %s do not choose our Pods", file, monitor.Namespace, selector)
		}
		if len(monitor.Spec.PodMetricsEndpoints) != 1 || !slices.ContainsFunc(target.template.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool {
			return p.Name == monitor.Spec.PodMetricsEndpoints[0].Port && p.ContainerPort == target.port
		}) {
			t.Errorf("%s: the Pods have no such port: %+v", file, monitor.Spec.PodMetricsEndpoints)
		}
	}
}

// The kustomization lists each file of the folder.
func TestMonitoringIsWhole(t *testing.T) {
	text, err := os.ReadFile(manifests + "monitoring/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c component
	if err := sigsyaml.UnmarshalStrict(text, &c); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(manifests + "monitoring")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if file.Name() != "kustomization.yaml" && !slices.Contains(c.Resources, file.Name()) {
			t.Errorf("%s is not applied", file.Name())
		}
	}
	if len(c.Resources) != len(files)-1 {
		t.Errorf("resources %q for %d files", c.Resources, len(files))
	}
}
