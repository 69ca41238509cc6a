package egress

import (
	"net/netip"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

type shelf struct {
	cache.Indexer
	transform cache.TransformFunc
}

func (s *shelf) SetTransform(f cache.TransformFunc) error { s.transform = f; return nil }
func (s *shelf) GetIndexer() cache.Indexer                { return s.Indexer }

func TestBlocked(t *testing.T) {
	const all = "podSelector: {}\npolicyTypes: [Egress]\n"
	for name, tt := range map[string]struct {
		specs []string
		want  bool
	}{
		"no policy":                   {nil, false},
		"ingress only":                {[]string{"podSelector: {}\npolicyTypes: [Ingress]\n"}, false},
		"deny all":                    {[]string{all}, true},
		"other Pods":                  {[]string{"podSelector: {matchLabels: {app: db}}\npolicyTypes: [Egress]\n"}, false},
		"this Pod by expression":      {[]string{"podSelector: {matchExpressions: [{key: app, operator: In, values: [web]}]}\npolicyTypes: [Egress]\n"}, true},
		"cluster DNS Pods only":       {[]string{all + "egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{port: 53, protocol: UDP}]}]\n"}, true},
		"everywhere":                  {[]string{all + "egress: [{}]\n"}, false},
		"port 53 everywhere":          {[]string{all + "egress: [{ports: [{port: 53, protocol: UDP}, {port: 53}]}]\n"}, false},
		"TCP only":                    {[]string{all + "egress: [{ports: [{port: 53}]}]\n"}, true},
		"another port":                {[]string{all + "egress: [{ports: [{port: 5353, protocol: UDP}]}]\n"}, true},
		"a range of ports":            {[]string{all + "egress: [{ports: [{port: 1, endPort: 100, protocol: UDP}]}]\n"}, false},
		"all UDP":                     {[]string{all + "egress: [{ports: [{protocol: UDP}]}]\n"}, false},
		"a named port":                {[]string{all + "egress: [{ports: [{port: dns, protocol: UDP}]}]\n"}, true},
		"the address":                 {[]string{all + "egress: [{to: [{ipBlock: {cidr: 169.254.25.10/32}}]}]\n"}, false},
		"link-local":                  {[]string{all + "egress: [{to: [{ipBlock: {cidr: 169.254.0.0/16}}], ports: [{port: 53, protocol: UDP}]}]\n"}, false},
		"all but link-local":          {[]string{all + "egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}}]}]\n"}, true},
		"another policy allows it":    {[]string{all, all + "egress: [{to: [{ipBlock: {cidr: 169.254.25.10/32}}]}]\n"}, false},
		"allowed for other Pods only": {[]string{all, "podSelector: {matchLabels: {app: db}}\npolicyTypes: [Egress]\negress: [{}]\n"}, true},
		"a broken block":              {[]string{all + "egress: [{to: [{ipBlock: {cidr: nonsense}}]}]\n"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
			p, err := New(s, []netip.Addr{netip.MustParseAddr("169.254.25.10")})
			if err != nil {
				t.Fatal(err)
			}
			for i, spec := range tt.specs {
				policy := &networkingv1.NetworkPolicy{}
				policy.Name, policy.Namespace = string(rune('a'+i)), "shop"
				if err := yaml.UnmarshalStrict([]byte(spec), &policy.Spec); err != nil {
					t.Fatal(err)
				}
				trimmed, err := s.transform(policy)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Add(trimmed); err != nil {
					t.Fatal(err)
				}
			}
			if got := p.Blocked("shop", []byte(`{"app":"web"}`)); got != tt.want {
				t.Errorf("blocked %t, want %t", got, tt.want)
			}
			if p.Blocked("elsewhere", []byte(`{"app":"web"}`)) {
				t.Error("policies of one namespace reach into another")
			}
		})
	}
}

// The example lets Pods reach the cache that a deny-all, or a policy for the cluster DNS alone, keeps them from; and over
// UDP and TCP both the cache and the cluster DNS, which answers in its place.
func TestExamplePolicy(t *testing.T) {
	text, err := os.ReadFile("../../../manifests/webhook/examples/network-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var example networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict(text, &example); err != nil {
		t.Fatal(err)
	}
	if example.Kind != "NetworkPolicy" || example.APIVersion != "networking.k8s.io/v1" || example.Namespace != "" {
		t.Errorf("it is a %s %s for namespace %q, want one for any", example.APIVersion, example.Kind, example.Namespace)
	}
	example.Namespace = "shop"
	dnsOnly := example.DeepCopy()
	dnsOnly.Name, dnsOnly.Spec.Egress = "dns-only", dnsOnly.Spec.Egress[1:]
	deny := example.DeepCopy()
	deny.Name, deny.Spec.Egress = "deny", nil
	for _, tt := range []struct {
		name     string
		policies []*networkingv1.NetworkPolicy
		want     bool
	}{
		{"deny all", []*networkingv1.NetworkPolicy{deny}, true},
		{"cluster DNS only", []*networkingv1.NetworkPolicy{deny, dnsOnly}, true},
		{"with the example", []*networkingv1.NetworkPolicy{deny, dnsOnly, &example}, false},
	} {
		s := &shelf{Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
		p, err := New(s, []netip.Addr{netip.MustParseAddr("169.254.25.10")})
		if err != nil {
			t.Fatal(err)
		}
		for _, policy := range tt.policies {
			if err := s.Add(policy); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.Blocked("shop", nil); got != tt.want {
			t.Errorf("%s: blocked %t, want %t", tt.name, got, tt.want)
		}
	}
	allowed := map[string]bool{}
	for _, rule := range example.Spec.Egress {
		for _, to := range rule.To {
			target := ""
			switch {
			case to.IPBlock != nil:
				target = to.IPBlock.CIDR
			case to.NamespaceSelector != nil && to.PodSelector != nil:
				target = to.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] + "/" + to.PodSelector.MatchLabels["k8s-app"]
			}
			for _, port := range rule.Ports {
				if *port.Port == intstr.FromInt32(dnsPort) {
					allowed[target+" "+string(*port.Protocol)] = true
				}
			}
		}
	}
	for _, want := range []string{"169.254.25.10/32 UDP", "169.254.25.10/32 TCP", "kube-system/kube-dns UDP", "kube-system/kube-dns TCP"} {
		if !allowed[want] {
			t.Errorf("the example does not allow %s: %v", want, allowed)
		}
	}
	if len(allowed) != 4 {
		t.Errorf("the example allows more than DNS: %v", allowed)
	}
}
