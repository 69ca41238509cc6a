package admit

import (
	"encoding/base64"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
	"github.com/nodedns/nodedns/webhook/internal/rawjson"
)

// review is the little of an AdmissionReview that matters here, as views into the body.
type review struct {
	apiVersion string
	kind       string
	uid        rawjson.Value
	namespace  string
	name       string
	operation  rawjson.Value
	resource   rawjson.Value // request.resource.resource
	group      rawjson.Value // request.resource.group
	sub        rawjson.Value
	object     rawjson.Value
	dryRun     bool
}

// readReview reads body, which must be valid JSON. What is missing stays empty.
func readReview(body []byte) review {
	r := review{apiVersion: "admission.k8s.io/v1", kind: "AdmissionReview"}
	for key, value := range rawjson.Members(body) {
		switch {
		case rawjson.KeyIs(key, "apiVersion"):
			if !value.Is(r.apiVersion) {
				r.apiVersion, _ = value.String()
			}
		case rawjson.KeyIs(key, "kind"):
			if !value.Is(r.kind) {
				r.kind, _ = value.String()
			}
		case rawjson.KeyIs(key, "request"):
			r.readRequest(value)
		}
	}
	return r
}

func (r *review) readRequest(request rawjson.Value) {
	for key, value := range rawjson.Members(request) {
		switch {
		case rawjson.KeyIs(key, "uid"):
			r.uid = value
		case rawjson.KeyIs(key, "namespace"):
			r.namespace, _ = value.String()
		case rawjson.KeyIs(key, "name"):
			r.name, _ = value.String()
		case rawjson.KeyIs(key, "operation"):
			r.operation = value
		case rawjson.KeyIs(key, "resource"):
			r.resource, r.group = rawjson.Get(value, "resource"), rawjson.Get(value, "group")
		case rawjson.KeyIs(key, "subResource"):
			r.sub = value
		case rawjson.KeyIs(key, "object"):
			r.object = value
		case rawjson.KeyIs(key, "dryRun"):
			r.dryRun = value.True()
		}
	}
}

// ours tells whether the review is about the creation of a Pod. Members that are missing do not speak against it.
func (r *review) ours() bool {
	return (r.operation.Null() || r.operation.Is("CREATE")) &&
		(r.resource.Null() || r.resource.Is("pods")) &&
		(r.group.Null() || r.group.Is("")) &&
		(r.sub.Null() || r.sub.Is("")) &&
		r.object.Object()
}

// answer is what goes back.
type answer struct {
	reason   poddns.Reason // becomes an audit annotation; empty: none
	patch    []byte
	warnings []string
}

// appendResponse appends the AdmissionReview that answers r. Kind, version and uid are echoed: without them the API
// server takes the call for failed.
func appendResponse(dst []byte, r review, a answer) []byte {
	dst = append(dst, `{"kind":`...)
	dst = rawjson.AppendString(dst, r.kind)
	dst = append(dst, `,"apiVersion":`...)
	dst = rawjson.AppendString(dst, r.apiVersion)
	dst = append(dst, `,"response":{"uid":`...)
	if len(r.uid) > 0 && r.uid[0] == '"' {
		dst = append(dst, r.uid...)
	} else {
		dst = append(dst, `""`...)
	}
	dst = append(dst, `,"allowed":true`...)
	if a.patch != nil {
		dst = append(dst, `,"patchType":"JSONPatch","patch":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, a.patch)
		dst = append(dst, '"')
	}
	if a.reason != "" {
		dst = append(dst, `,"auditAnnotations":{"reason":`...)
		dst = rawjson.AppendString(dst, string(a.reason))
		dst = append(dst, '}')
	}
	for i, warning := range a.warnings {
		if i == 0 {
			dst = append(dst, `,"warnings":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = rawjson.AppendString(dst, warning)
	}
	if len(a.warnings) > 0 {
		dst = append(dst, ']')
	}
	return append(dst, "}}\n"...)
}
