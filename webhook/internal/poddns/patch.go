package poddns

import (
	"strings"

	"github.com/nodedns/nodedns/webhook/internal/rawjson"
)

// Patch is the RFC 6902 patch that writes the decision into the Pod, nil for nothing to write. It names each member by
// itself and creates missing parents, so that fields this package does not know survive.
func Patch(pod Pod, d Decision) []byte {
	if !d.Inject {
		return nil
	}
	p := patch{buf: make([]byte, 0, 1024)}
	p.add("/spec/dnsPolicy")
	p.buf = append(p.buf, `"None"`...)
	p.end()
	p.config(pod, d.Config)
	p.mark(pod, d.Reason)
	return append(p.buf, ']')
}

// patch writes operations. RFC 6902 section 4.1: "add" replaces a member that is there and needs the parent only.
type patch struct{ buf []byte }

func (p *patch) add(path string) {
	if len(p.buf) == 0 {
		p.buf = append(p.buf, `[{"op":"add","path":`...)
	} else {
		p.buf = append(p.buf, `,{"op":"add","path":`...)
	}
	p.buf = rawjson.AppendString(p.buf, path)
	p.buf = append(p.buf, `,"value":`...)
}

func (p *patch) end() { p.buf = append(p.buf, '}') }

func (p *patch) config(pod Pod, c Config) {
	if pod.DNSConfig.Empty() {
		p.add("/spec/dnsConfig")
		p.buf = append(p.buf, `{"nameservers":`...)
		p.strings(c.Nameservers)
		p.buf = append(p.buf, `,"searches":`...)
		p.strings(c.Searches)
		if len(c.AddOptions) > 0 {
			p.buf = append(p.buf, `,"options":`...)
			p.options(c.AddOptions)
		}
		p.buf = append(p.buf, '}')
		p.end()
		return
	}
	p.add("/spec/dnsConfig/nameservers")
	p.strings(c.Nameservers)
	p.end()
	p.add("/spec/dnsConfig/searches")
	p.strings(c.Searches)
	p.end()
	if len(c.AddOptions) == 0 {
		return
	}
	if rawjson.Get(pod.DNSConfig, "options").Empty() {
		p.add("/spec/dnsConfig/options")
		p.options(c.AddOptions)
		p.end()
		return
	}
	for _, option := range c.AddOptions {
		p.add("/spec/dnsConfig/options/-")
		p.option(option)
		p.end()
	}
}

func (p *patch) mark(pod Pod, reason Reason) {
	// Who lists the injected Pods means those that ask the cache.
	injected := "true"
	if reason == ClusterIPInjected {
		injected = "cluster-ip"
	}
	policy := pod.DNSPolicy
	if policy == "" {
		policy = "ClusterFirst"
	}
	if !pod.hasMetadata {
		p.add("/metadata")
		p.buf = append(p.buf, '{')
		p.member("labels", InjectedLabel, injected)
		p.buf = append(p.buf, ',')
		p.member("annotations", ReplacedPolicyAnnotation, policy)
		p.buf = append(p.buf, '}')
		p.end()
		return
	}
	p.entry(pod.Labels, "/metadata/labels", InjectedLabel, injected)
	p.entry(pod.Annotations, "/metadata/annotations", ReplacedPolicyAnnotation, policy)
}

// entry adds one entry to the string map at path, and the map where there is none.
func (p *patch) entry(have rawjson.Value, path, key, value string) {
	if !have.Object() {
		p.add(path)
		p.buf = append(p.buf, '{')
		p.buf = rawjson.AppendString(p.buf, key)
		p.buf = append(p.buf, ':')
		p.buf = rawjson.AppendString(p.buf, value)
		p.buf = append(p.buf, '}')
		p.end()
		return
	}
	if rawjson.Get(have, key).Is(value) {
		return
	}
	p.add(path + "/" + escapePointer(key))
	p.buf = rawjson.AppendString(p.buf, value)
	p.end()
}

func (p *patch) member(name, key, value string) {
	p.buf = rawjson.AppendString(p.buf, name)
	p.buf = append(p.buf, ":{"...)
	p.buf = rawjson.AppendString(p.buf, key)
	p.buf = append(p.buf, ':')
	p.buf = rawjson.AppendString(p.buf, value)
	p.buf = append(p.buf, '}')
}

func (p *patch) strings(list []string) {
	p.buf = append(p.buf, '[')
	for i, s := range list {
		if i > 0 {
			p.buf = append(p.buf, ',')
		}
		p.buf = rawjson.AppendString(p.buf, s)
	}
	p.buf = append(p.buf, ']')
}

func (p *patch) options(list []Option) {
	p.buf = append(p.buf, '[')
	for i, option := range list {
		if i > 0 {
			p.buf = append(p.buf, ',')
		}
		p.option(option)
	}
	p.buf = append(p.buf, ']')
}

func (p *patch) option(option Option) {
	p.buf = append(p.buf, `{"name":`...)
	p.buf = rawjson.AppendString(p.buf, option.Name)
	p.buf = append(p.buf, `,"value":`...)
	p.buf = rawjson.AppendString(p.buf, option.Value)
	p.buf = append(p.buf, '}')
}

// escapePointer escapes a key as a JSON Pointer token: RFC 6901 section 3, the tilde first.
func escapePointer(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}
