package poddns

import (
	"errors"

	"github.com/nodedns/nodedns/webhook/internal/rawjson"
)

// ErrNotPod is returned for an object without the parts of a Pod that the API server never leaves out.
var ErrNotPod = errors.New("object is not a Pod with a spec")

// Pod is the little of a Pod that decides about its DNS, as views into the JSON it was parsed from.
type Pod struct {
	Name         string // empty for a Pod that is still to get a generated name
	GenerateName string
	Labels       rawjson.Value
	Annotations  rawjson.Value
	HostNetwork  bool
	DNSPolicy    string // empty means ClusterFirst, as in the API
	DNSConfig    rawjson.Value
	OS           string // spec.os.name
	Placement    Placement

	hasMetadata bool
	size        int // of the JSON, in bytes
}

// Placement is what says on which nodes a Pod may land, as views into the Pod's JSON.
type Placement struct {
	NodeName     string
	NodeSelector rawjson.Value
	Affinity     rawjson.Value
	Tolerations  rawjson.Value
}

// Parse reads a Pod from object, which must be valid JSON and stay unchanged while the Pod is in use.
func Parse(object []byte) (Pod, error) {
	p := Pod{size: len(object)}
	var hasSpec bool
	for key, value := range rawjson.Members(object) {
		switch {
		case rawjson.KeyIs(key, "kind"):
			if !value.Is("Pod") {
				return Pod{}, ErrNotPod
			}
		case rawjson.KeyIs(key, "metadata") && value.Object():
			p.hasMetadata = true
			p.readMetadata(value)
		case rawjson.KeyIs(key, "spec") && value.Object():
			hasSpec = true
			p.readSpec(value)
		}
	}
	if !hasSpec {
		return Pod{}, ErrNotPod
	}
	return p, nil
}

func (p *Pod) readMetadata(metadata rawjson.Value) {
	for key, value := range rawjson.Members(metadata) {
		switch {
		case rawjson.KeyIs(key, "name"):
			p.Name, _ = value.String()
		case rawjson.KeyIs(key, "generateName"):
			p.GenerateName, _ = value.String()
		case rawjson.KeyIs(key, "labels"):
			p.Labels = value
		case rawjson.KeyIs(key, "annotations"):
			p.Annotations = value
		}
	}
}

func (p *Pod) readSpec(spec rawjson.Value) {
	for key, value := range rawjson.Members(spec) {
		switch {
		case rawjson.KeyIs(key, "hostNetwork"):
			p.HostNetwork = value.True()
		case rawjson.KeyIs(key, "dnsPolicy"):
			p.DNSPolicy, _ = value.String()
		case rawjson.KeyIs(key, "dnsConfig"):
			p.DNSConfig = value
		case rawjson.KeyIs(key, "nodeName"):
			p.Placement.NodeName, _ = value.String()
		case rawjson.KeyIs(key, "nodeSelector"):
			p.Placement.NodeSelector = value
		case rawjson.KeyIs(key, "affinity"):
			p.Placement.Affinity = value
		case rawjson.KeyIs(key, "tolerations"):
			p.Placement.Tolerations = value
		case rawjson.KeyIs(key, "os"):
			p.OS, _ = rawjson.Get(value, "name").String()
		}
	}
}

// windows tells whether the Pod says that it is for Windows nodes.
func (p *Pod) windows() bool {
	return p.OS == "windows" ||
		rawjson.Get(p.Placement.NodeSelector, "kubernetes.io/os").Is("windows") ||
		rawjson.Get(p.Placement.NodeSelector, "beta.kubernetes.io/os").Is("windows")
}

// virtualNode tells whether the Pod says that it is for a virtual kubelet. A toleration for every taint says nothing;
// one that names the provider's taint does, and wherever the Pod then lands leaving it alone is right.
func (p *Pod) virtualNode() bool {
	if rawjson.Get(p.Placement.NodeSelector, "type").Is("virtual-kubelet") ||
		!rawjson.Get(p.Labels, "eks.amazonaws.com/fargate-profile").Null() ||
		rawjson.Get(p.Labels, "alibabacloud.com/eci").Is("true") {
		return true
	}
	for toleration := range rawjson.Elements(p.Placement.Tolerations) {
		if rawjson.Get(toleration, "key").Is("virtual-kubelet.io/provider") {
			return true
		}
	}
	return false
}
