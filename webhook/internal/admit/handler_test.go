package admit

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// world is the Sources of a test; the zero value has everything ready and every namespace enabled.
type world struct {
	caches    poddns.Caches
	labels    map[string]string // namespace → injection label; absent: enabled
	audited   []string
	panicking bool
}

func (w *world) sources() Sources {
	return Sources{
		Namespace: func(_ context.Context, name string) (poddns.Namespace, bool) {
			if name == "unknown" {
				return poddns.Namespace{}, false
			}
			label, ok := w.labels[name]
			if !ok {
				label = poddns.Enabled
			}
			return poddns.Namespace{Name: name, Injection: label}, true
		},
		Cluster: func() poddns.Cluster {
			if w.panicking {
				panic("made to")
			}
			return poddns.Cluster{
				LocalIPs:   []netip.Addr{netip.MustParseAddr("169.254.25.10")},
				ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
				Domain:     "cluster.local", HostSearchesKnown: true,
			}
		},
		Caches:  func(poddns.Placement) poddns.Caches { return w.caches },
		Audited: func(ns string) { w.audited = append(w.audited, ns) },
	}
}

func newHandler(t testing.TB, w *world, policy poddns.Policy, log *slog.Logger) *Handler {
	t.Helper()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	policy.OwnNamespace = "nodedns"
	h, err := New(Config{Policy: policy}, w.sources(), log, nil)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func ready() *world { return &world{caches: poddns.CachesAllReady} }

// response is an AdmissionReview as the API server reads it.
type response struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Response   struct {
		UID              string            `json:"uid"`
		Allowed          bool              `json:"allowed"`
		Patch            string            `json:"patch"`
		PatchType        string            `json:"patchType"`
		AuditAnnotations map[string]string `json:"auditAnnotations"`
		Warnings         []string          `json:"warnings"`
	} `json:"response"`
}

func post(t testing.TB, h http.Handler, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mutate", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func reviewed(t testing.TB, h http.Handler, body string) response {
	t.Helper()
	w := post(t, h, body)
	var out response
	decoder := json.NewDecoder(w.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&out); err != nil || w.Code != http.StatusOK {
		t.Fatalf("status %d: %v", w.Code, err)
	}
	if !out.Response.Allowed {
		t.Fatalf("not allowed: %+v", out)
	}
	return out
}

// patch is the decoded patch, nil if there is none.
func (r response) patch(t testing.TB) []byte {
	t.Helper()
	if r.Response.Patch == "" {
		return nil
	}
	if r.Response.PatchType != "JSONPatch" {
		t.Fatalf("patch type %q", r.Response.PatchType)
	}
	patch, err := base64.StdEncoding.DecodeString(r.Response.Patch)
	if err != nil {
		t.Fatal(err)
	}
	return patch
}

func (r response) reason() string { return r.Response.AuditAnnotations["reason"] }

// request wraps a Pod into a review as the API server writes one.
func request(namespace, object string) string {
	return fmt.Sprintf(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u1",
		"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},
		"namespace":%q,"operation":"CREATE","object":%s,"oldObject":null,"dryRun":false}}`, namespace, object)
}

// apply patches object as strictly as RFC 6902 is written, and returns it.
func apply(t testing.TB, object string, patch []byte) string {
	t.Helper()
	if patch == nil {
		return object
	}
	decoded, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatalf("patch %s: %v", patch, err)
	}
	options := jsonpatch.NewApplyOptions()
	options.EnsurePathExistsOnAdd = false
	out, err := decoded.ApplyWithOptions([]byte(object), options)
	if err != nil {
		t.Fatalf("applying %s to %s: %v", patch, object, err)
	}
	return string(out)
}

// dns is what resolves in a Pod.
type dns struct {
	Policy      string
	Nameservers []string
	Searches    []string
	Options     map[string]string
}

func dnsOf(t testing.TB, object string) dns {
	t.Helper()
	var pod struct {
		Spec struct {
			DNSPolicy string `json:"dnsPolicy"`
			DNSConfig struct {
				Nameservers []string `json:"nameservers"`
				Searches    []string `json:"searches"`
				Options     []struct {
					Name  string `json:"name"`
					Value string `json:"value"`
				} `json:"options"`
			} `json:"dnsConfig"`
		} `json:"spec"`
	}
	if err := json.Unmarshal([]byte(object), &pod); err != nil {
		t.Fatal(err)
	}
	out := dns{Policy: pod.Spec.DNSPolicy, Nameservers: pod.Spec.DNSConfig.Nameservers, Searches: pod.Spec.DNSConfig.Searches, Options: map[string]string{}}
	for _, o := range pod.Spec.DNSConfig.Options {
		if _, twice := out.Options[o.Name]; twice {
			t.Errorf("option %s twice", o.Name)
		}
		out.Options[o.Name] = o.Value
	}
	return out
}

func injectedIn(namespace string) dns {
	return dns{
		Policy:      "None",
		Nameservers: []string{"169.254.25.10", "10.96.0.10"},
		Searches:    []string{namespace + ".svc.cluster.local", "svc.cluster.local", "cluster.local"},
		Options:     map[string]string{"ndots": "5"},
	}
}

const bare = `{"metadata":{"generateName":"web-7d9-"},"spec":{"containers":[{"name":"c","image":"x"}]}}`

// W01: name and namespace of the object are empty or somebody else's; the request's namespace is what counts.
func TestW01NamespaceComesFromTheRequest(t *testing.T) {
	for name, tt := range map[string]struct{ body, namespace string }{
		"as reported": {`{"request":{"uid":"u1","namespace":"shop","operation":"CREATE","object":` + bare + `}}`, "shop"},
		"another namespace in the object": {`{"request":{"uid":"u1","namespace":"shop","operation":"CREATE","object":
			{"metadata":{"namespace":"kube-system","name":"p"},"spec":{}}}}`, "shop"},
		"with a name": {`{"request":{"uid":"u1","name":"p","namespace":"shop","operation":"CREATE","object":` + bare + `}}`, "shop"},
	} {
		t.Run(name, func(t *testing.T) {
			object := bare
			if name == "another namespace in the object" {
				object = `{"metadata":{"namespace":"kube-system","name":"p"},"spec":{}}`
			}
			var logged bytes.Buffer
			log := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
			out := reviewed(t, newHandler(t, ready(), poddns.Policy{}, log), tt.body)
			if diff := cmp.Diff(injectedIn(tt.namespace), dnsOf(t, apply(t, object, out.patch(t)))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if name == "as reported" && !strings.Contains(logged.String(), "web-7d9-*") {
				t.Errorf("the log does not name the Pod: %s", logged.String())
			}
		})
	}
	t.Run("exclusions too", func(t *testing.T) {
		object := `{"metadata":{"namespace":"shop"},"spec":{}}`
		for namespace, want := range map[string]poddns.Reason{"kube-system": poddns.SystemNamespace, "nodedns": poddns.OwnNamespace} {
			out := reviewed(t, newHandler(t, ready(), poddns.Policy{}, nil), request(namespace, object))
			if out.patch(t) != nil || out.reason() != string(want) {
				t.Errorf("%s: reason %s, patch %s", namespace, out.reason(), out.patch(t))
			}
		}
	})
	t.Run("both empty", func(t *testing.T) {
		w := ready()
		w.labels = map[string]string{"": ""}
		out := reviewed(t, newHandler(t, w, poddns.Policy{}, nil), `{"request":{"uid":"u1","operation":"CREATE","object":`+bare+`}}`)
		if out.patch(t) != nil {
			t.Errorf("patched a Pod of no namespace: %s", out.patch(t))
		}
	})
}

// W02: whatever the registered selectors let through, the system's Pods and our own are left alone.
func TestW02SystemAndOwnPodsAreLeftAlone(t *testing.T) {
	for _, policy := range []poddns.Policy{{}, {Default: true}, {PodOptIn: true}, {NotReady: poddns.NotReadyClusterIP}} {
		for _, namespace := range []string{"kube-system", "nodedns"} {
			object := `{"metadata":{"name":"p","labels":{"node-local-dns-injection":"enabled"}},"spec":{}}`
			out := reviewed(t, newHandler(t, ready(), policy, nil), request(namespace, object))
			if out.patch(t) != nil {
				t.Errorf("%+v: patched in %s", policy, namespace)
			}
		}
	}
	for name, object := range map[string]string{
		"opted out by its own label": `{"metadata":{"labels":{"node-local-dns-injection":"disabled"}},"spec":{}}`,
	} {
		if out := reviewed(t, newHandler(t, ready(), poddns.Policy{Default: true}, nil), request("shop", object)); out.patch(t) != nil {
			t.Errorf("%s: patched", name)
		}
	}
}

// W07: a mirror Pod is only the image of a static one, whoever writes it.
func TestW07MirrorPodsAreLeftAlone(t *testing.T) {
	for name, annotations := range map[string]string{
		"kubelet's":        `{"kubernetes.io/config.mirror":"abc","kubernetes.io/config.source":"file"}`,
		"a user's":         `{"kubernetes.io/config.mirror":"x"}`,
		"with empty value": `{"kubernetes.io/config.mirror":""}`,
	} {
		object := `{"metadata":{"name":"p","annotations":` + annotations + `,"ownerReferences":[{"kind":"Node"}]},"spec":{"nodeName":"n1"}}`
		out := reviewed(t, newHandler(t, ready(), poddns.Policy{}, nil), request("shop", object))
		if out.patch(t) != nil || out.reason() != string(poddns.MirrorPod) {
			t.Errorf("%s: reason %s, patch %s", name, out.reason(), out.patch(t))
		}
	}
}

// W09: a dry run gets the very same answer and leaves no trace.
func TestW09DryRunIsAnsweredAlike(t *testing.T) {
	w := ready()
	h := newHandler(t, w, poddns.Policy{}, nil)
	body := request("shop", bare)
	dry := strings.Replace(body, `"dryRun":false`, `"dryRun":true`, 1)
	if diff := cmp.Diff(post(t, h, body).Body.String(), post(t, h, dry).Body.String()); diff != "" {
		t.Errorf("-real +dry:\n%s", diff)
	}
	audit := newHandler(t, w, poddns.Policy{Audit: true}, nil)
	reviewed(t, audit, dry)
	if len(w.audited) != 0 {
		t.Errorf("a dry run was noted for %v", w.audited)
	}
	reviewed(t, audit, body)
	if diff := cmp.Diff([]string{"shop"}, w.audited); diff != "" {
		t.Errorf("-want +noted:\n%s", diff)
	}
}

// W10: called again after other webhooks, it repairs what was undone and adds nothing.
func TestW10CalledAgain(t *testing.T) {
	h := newHandler(t, ready(), poddns.Policy{}, nil)
	first := func(t *testing.T, object string) string {
		return apply(t, object, reviewed(t, h, request("shop", object)).patch(t))
	}
	change := func(t *testing.T, object, patch string) string { return apply(t, object, []byte(patch)) }
	for name, tt := range map[string]struct {
		between string
		want    func(dns) dns
		silent  bool // a further call has nothing to say
	}{
		"nothing between": {``, func(d dns) dns { return d }, true},
		"a sidecar":       {`[{"op":"add","path":"/spec/containers/-","value":{"name":"s"}}]`, func(d dns) dns { return d }, true},
		"ndots changed": {`[{"op":"replace","path":"/spec/dnsConfig/options/0/value","value":"2"}]`,
			func(d dns) dns { d.Options["ndots"] = "2"; return d }, true},
		"policy set back": {`[{"op":"replace","path":"/spec/dnsPolicy","value":"ClusterFirst"}]`, func(d dns) dns { return d }, false},
		"policy set back and ndots changed": {`[{"op":"replace","path":"/spec/dnsPolicy","value":"ClusterFirst"},
			{"op":"replace","path":"/spec/dnsConfig/options/0/value","value":"2"}]`, func(d dns) dns { d.Options["ndots"] = "2"; return d }, false},
		"another nameserver first": {`[{"op":"add","path":"/spec/dnsConfig/nameservers/0","value":"192.0.2.53"}]`,
			func(d dns) dns { d.Nameservers = append([]string{"192.0.2.53"}, d.Nameservers...); return d }, true},
		"mark removed": {`[{"op":"remove","path":"/metadata/labels"},{"op":"remove","path":"/metadata/annotations"}]`, func(d dns) dns { return d }, true},
	} {
		t.Run(name, func(t *testing.T) {
			object := first(t, bare)
			if tt.between != "" {
				object = change(t, object, tt.between)
			}
			again := reviewed(t, h, request("shop", object))
			if silent := again.patch(t) == nil; silent != tt.silent {
				t.Errorf("second call's patch: %s", again.patch(t))
			}
			want := tt.want(injectedIn("shop"))
			for range 3 {
				object = first(t, object)
				if diff := cmp.Diff(want, dnsOf(t, object)); diff != "" {
					t.Fatalf("-want +got:\n%s", diff)
				}
			}
			if out := reviewed(t, h, request("shop", object)); out.patch(t) != nil || out.reason() != string(poddns.AlreadyInjected) {
				t.Errorf("last call: reason %s, patch %s", out.reason(), out.patch(t))
			}
		})
	}
}

// W11: the patch creates every parent it needs, escapes keys, and loses nothing.
func TestW11PatchHasItsParents(t *testing.T) {
	h := newHandler(t, ready(), poddns.Policy{}, nil)
	configs := []string{``, `"dnsConfig":{},`, `"dnsConfig":null,`, `"dnsConfig":{"options":[]},`, `"dnsConfig":{"options":null},`,
		`"dnsConfig":{"nameservers":null,"searches":[]},`, `"dnsConfig":{"future":1},`, `"dnsConfig":{"options":[{"name":"edns0"}]},`}
	metas := []string{`{}`, `{"annotations":null,"labels":null}`, `{"annotations":{},"labels":{}}`, `{"annotations":{"a/b~c":"d"}}`,
		`{"labels":{"node-local-dns-injection.nodedns.io/injected":"stale"}}`, ``}
	for _, config := range configs {
		for _, meta := range metas {
			object := `{"metadata":` + meta + `,"spec":{` + config + `"futureSpec":{"é":[1,2.50,1e3]},"containers":[]},"futureTop":true}`
			if meta == "" {
				object = `{"spec":{` + config + `"futureSpec":{"é":[1,2.50,1e3]},"containers":[]},"futureTop":true}`
			}
			out := reviewed(t, h, request("shop", object))
			patch := out.patch(t)
			if patch == nil {
				t.Errorf("%s: no patch, reason %s", object, out.reason())
				continue
			}
			after := apply(t, object, patch)
			want := injectedIn("shop")
			if strings.Contains(config, "edns0") {
				want.Options["edns0"] = ""
			}
			if diff := cmp.Diff(want, dnsOf(t, after)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", object, diff)
			}
			for _, kept := range []string{`"futureSpec":{"é":[1,2.50,1e3]}`, `"futureTop":true`} {
				if !strings.Contains(after, kept) {
					t.Errorf("%s: %s was lost: %s", object, kept, after)
				}
			}
			if strings.Contains(config, "future") && !strings.Contains(after, `"future":1`) {
				t.Errorf("%s: a field of dnsConfig was lost: %s", object, after)
			}
			if strings.Contains(meta, "a/b~c") && !strings.Contains(after, `"a/b~c":"d"`) {
				t.Errorf("%s: an annotation was lost: %s", object, after)
			}
			if !strings.Contains(after, `"node-local-dns-injection.nodedns.io/injected":"true"`) {
				t.Errorf("%s: not marked: %s", object, after)
			}
		}
	}
}

// W13: the matrix of host network and DNS policy.
func TestW13HostNetworkAndPolicies(t *testing.T) {
	h := newHandler(t, ready(), poddns.Policy{}, nil)
	for _, hostNetwork := range []bool{false, true} {
		for policy, want := range map[string]poddns.Reason{
			"": poddns.Injected, "ClusterFirst": poddns.Injected, "ClusterFirstWithHostNet": poddns.Injected,
			"Default": poddns.DNSPolicy, "None": poddns.DNSPolicy,
		} {
			if hostNetwork && (policy == "" || policy == "ClusterFirst") {
				want = poddns.HostNetwork
			}
			for config, change := range map[string]func(*dns){
				``: func(*dns) {},
				`"dnsConfig":{"options":[{"name":"ndots","value":"2"}]},`: func(d *dns) { d.Options["ndots"] = "2" },
				`"dnsConfig":{"nameservers":["192.0.2.53"]},`:             func(d *dns) { d.Nameservers = append(d.Nameservers, "192.0.2.53") },
				`"dnsConfig":{"searches":["corp.example"]},`:              func(d *dns) { d.Searches = append(d.Searches, "corp.example") },
			} {
				field := ""
				if policy != "" {
					field = fmt.Sprintf(`"dnsPolicy":%q,`, policy)
				}
				object := fmt.Sprintf(`{"metadata":{},"spec":{"hostNetwork":%t,%s%s"containers":[]}}`, hostNetwork, field, config)
				out := reviewed(t, h, request("shop", object))
				if out.reason() != string(want) || (out.patch(t) != nil) != (want == poddns.Injected) {
					t.Errorf("%s: reason %s, want %s; patch %s", object, out.reason(), want, out.patch(t))
				}
				if want != poddns.Injected {
					continue
				}
				expected := injectedIn("shop")
				change(&expected)
				if diff := cmp.Diff(expected, dnsOf(t, apply(t, object, out.patch(t)))); diff != "" {
					t.Errorf("%s: -want +got:\n%s", object, diff)
				}
			}
		}
	}
}

// W15: what can be parsed is answered with its own version, kind and uid; the rest gets a status.
func TestW15EveryReviewIsAnsweredAcceptably(t *testing.T) {
	h := newHandler(t, ready(), poddns.Policy{}, nil)
	for name, tt := range map[string]struct {
		body                  string
		apiVersion, kind, uid string
		patched               bool
	}{
		"v1":              {request("shop", bare), "admission.k8s.io/v1", "AdmissionReview", "u1", true},
		"v1beta1":         {strings.Replace(request("shop", bare), "/v1", "/v1beta1", 1), "admission.k8s.io/v1beta1", "AdmissionReview", "u1", true},
		"kind Service":    {`{"kind":"Service","apiVersion":"v1","metadata":{}}`, "v1", "Service", "", false},
		"request null":    {`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":null}`, "admission.k8s.io/v1", "AdmissionReview", "", false},
		"no object":       {`{"request":{"uid":"u9","namespace":"shop"}}`, "admission.k8s.io/v1", "AdmissionReview", "u9", false},
		"not a Pod":       {request("shop", `{"kind":"Service","metadata":{},"spec":{}}`), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"Pod no spec":     {request("shop", `{"kind":"Pod","metadata":{}}`), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"dnsConfig list":  {request("shop", `{"spec":{"dnsConfig":[]}}`), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"dnsConfig text":  {request("shop", `{"spec":{"dnsConfig":"x"}}`), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"servers text":    {request("shop", `{"spec":{"dnsConfig":{"nameservers":"x"}}}`), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"servers numbers": {request("shop", `{"spec":{"dnsConfig":{"nameservers":[1]}}}`), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"options text":    {request("shop", `{"spec":{"dnsConfig":{"options":["x"]}}}`), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"an update":       {strings.Replace(request("shop", bare), "CREATE", "UPDATE", 1), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"a subresource": {strings.Replace(request("shop", bare), `"operation"`, `"subResource":"ephemeralcontainers","operation"`, 1),
			"admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"another resource":  {strings.Replace(request("shop", bare), `"pods"`, `"deployments"`, 1), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
		"a list":            {`[]`, "admission.k8s.io/v1", "AdmissionReview", "", false},
		"null":              {`null`, "admission.k8s.io/v1", "AdmissionReview", "", false},
		"uid no string":     {`{"request":{"uid":7}}`, "admission.k8s.io/v1", "AdmissionReview", "", false},
		"unknown namespace": {request("unknown", bare), "admission.k8s.io/v1", "AdmissionReview", "u1", false},
	} {
		t.Run(name, func(t *testing.T) {
			out := reviewed(t, h, tt.body)
			if out.APIVersion != tt.apiVersion || out.Kind != tt.kind || out.Response.UID != tt.uid {
				t.Errorf("answered as %s %s uid %q", out.APIVersion, out.Kind, out.Response.UID)
			}
			if (out.patch(t) != nil) != tt.patched {
				t.Errorf("patch %s", out.patch(t))
			}
		})
	}

	big := func(containers, env int) string {
		var b strings.Builder
		b.WriteString(`{"metadata":{},"spec":{"containers":[`)
		for i := range containers {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"name":"c%d","env":[{"name":"E","value":%q}]}`, i, strings.Repeat("x", env))
		}
		b.WriteString(`]}}`)
		return request("shop", b.String())
	}
	if out := reviewed(t, h, big(300, 9700)); out.patch(t) == nil {
		t.Error("a Pod of 2.9 MB was not patched")
	}
	for name, tt := range map[string]struct {
		method, contentType, encoding, body string
		want                                int
	}{
		"GET":             {http.MethodGet, "application/json", "", "", http.StatusMethodNotAllowed},
		"PUT":             {http.MethodPut, "application/json", "", "{}", http.StatusMethodNotAllowed},
		"text":            {http.MethodPost, "text/plain", "", request("shop", bare), http.StatusUnsupportedMediaType},
		"no content type": {http.MethodPost, "", "", request("shop", bare), http.StatusUnsupportedMediaType},
		"charset":         {http.MethodPost, "application/json; charset=utf-8", "", request("shop", bare), http.StatusOK},
		"gzip":            {http.MethodPost, "application/json", "gzip", "\x1f\x8b\x08", http.StatusUnsupportedMediaType},
		"empty":           {http.MethodPost, "application/json", "", "", http.StatusBadRequest},
		"not JSON":        {http.MethodPost, "application/json", "", "kind: AdmissionReview", http.StatusBadRequest},
		"half of it":      {http.MethodPost, "application/json", "", request("shop", bare)[:200], http.StatusBadRequest},
		"two of them":     {http.MethodPost, "application/json", "", request("shop", bare) + "{}", http.StatusBadRequest},
		"8 MB":            {http.MethodPost, "application/json", "", big(800, 10_000), http.StatusRequestEntityTooLarge},
	} {
		for _, chunked := range []bool{false, true} {
			r := httptest.NewRequestWithContext(t.Context(), tt.method, "/mutate", strings.NewReader(tt.body))
			r.Header.Set("Content-Type", tt.contentType)
			if tt.encoding != "" {
				r.Header.Set("Content-Encoding", tt.encoding)
			}
			if chunked {
				r.ContentLength = -1
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.want {
				t.Errorf("%s: status %d, want %d", name, w.Code, tt.want)
			}
		}
	}
}

func TestPanicLeavesThePodAlone(t *testing.T) {
	w := ready()
	w.panicking = true
	out := reviewed(t, newHandler(t, w, poddns.Policy{}, nil), request("shop", bare))
	if out.patch(t) != nil || out.Response.UID != "u1" {
		t.Errorf("answered %+v", out)
	}
}

func TestAuditModeAnnotatesNothing(t *testing.T) {
	for _, object := range []string{bare, `{"metadata":{},"spec":{"hostNetwork":true}}`, `{"spec":{"dnsConfig":{"nameservers":["192.0.2.1","192.0.2.2"]}}}`} {
		out := reviewed(t, newHandler(t, ready(), poddns.Policy{Audit: true}, nil), request("shop", object))
		if out.patch(t) != nil || len(out.Response.AuditAnnotations) != 0 || len(out.Response.Warnings) != 0 {
			t.Errorf("%s: answered %+v", object, out)
		}
	}
}

func TestDecisionsAreCountedByReason(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	h, err := New(Config{}, ready().sources(), slog.New(slog.DiscardHandler), NewMetrics(registry))
	if err != nil {
		t.Fatal(err)
	}
	post(t, h, request("shop", bare))
	post(t, h, request("kube-system", bare))
	post(t, h, strings.Replace(request("shop", bare), `"dryRun":false`, `"dryRun":true`, 1))
	for want, labels := range map[float64][]string{1: {"injected", "false"}, 0: {"cache-not-ready", "false"}} {
		if got := testutil.ToFloat64(h.metrics.decisions.WithLabelValues(labels...)); got != want {
			t.Errorf("%v: %v, want %v", labels, got, want)
		}
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) != 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestNewRefusesBadConfig(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for name, tt := range map[string]struct {
		cfg     Config
		sources Sources
	}{
		"policy":     {Config{Policy: poddns.Policy{Fallback: "sometimes"}}, ready().sources()},
		"not ready":  {Config{Policy: poddns.Policy{NotReady: "explode"}}, ready().sources()},
		"body":       {Config{MaxBody: -1}, ready().sources()},
		"huge body":  {Config{MaxBody: 17 << 20}, ready().sources()},
		"no sources": {Config{}, Sources{}},
	} {
		if _, err := New(tt.cfg, tt.sources, log, nil); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func fixture(t testing.TB) []byte {
	t.Helper()
	body, err := os.ReadFile("testdata/review.json")
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func FuzzReview(f *testing.F) {
	f.Add(fixture(f))
	f.Add([]byte(request("shop", bare)))
	f.Add([]byte(`{"request":{"object":{"spec":{"dnsConfig":{"options":[{"name":"ndots"}]}}}}}`))
	h := newHandler(f, ready(), poddns.Policy{}, nil)
	f.Fuzz(func(t *testing.T, body []byte) {
		w := post(t, h, string(body))
		if w.Code != http.StatusOK {
			return
		}
		var out response
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || !out.Response.Allowed {
			t.Fatalf("answer %s: %v", w.Body, err)
		}
		patch := out.patch(t)
		if patch == nil {
			return
		}
		var in struct {
			Request struct {
				Object json.RawMessage `json:"object"`
			} `json:"request"`
		}
		// encoding/json ignores the case of member names, which JSON and the API server do not: only what both read
		// alike can be compared.
		if json.Unmarshal(body, &in) == nil && len(in.Request.Object) > 0 && bytes.Contains(body, []byte(`"object"`)) {
			if _, err := jsonpatch.DecodePatch(patch); err != nil {
				t.Fatalf("patch %s: %v", patch, err)
			}
		}
	})
}
