package poddns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodedns/nodedns/webhook/internal/rawjson"
)

// What the API accepts in a dnsConfig (the resolver takes no more either).
const (
	maxNameservers  = 3
	maxSearches     = 32
	maxSearchLength = 2048 // of all searches joined by a space
)

// What the API accepts of a whole Pod.
const (
	maxAnnotations = 256 << 10 // keys and values together
	maxObject      = 3 << 19   // 1.5 MiB: etcd's limit for a request
	// patchRoom is more than a patch of ours adds: a config of the limits above, label and annotation.
	patchRoom = 4 << 10
)

// Option is one resolver option.
type Option struct{ Name, Value string }

// Config is a dnsConfig to be written: lists whole, options only as far as the Pod does not name them itself.
type Config struct {
	Nameservers []string
	Searches    []string
	AddOptions  []Option
}

// ownConfig is the Pod's own dnsConfig.
type ownConfig struct {
	nameservers []string
	searches    []string
	options     []string // names
}

var errDNSConfig = errors.New("dnsConfig is not of the API's form")

func readConfig(raw rawjson.Value) (ownConfig, error) {
	if raw.Null() {
		return ownConfig{}, nil
	}
	if !raw.Object() {
		return ownConfig{}, errDNSConfig
	}
	var own ownConfig
	var err error
	for key, value := range rawjson.Members(raw) {
		switch {
		case rawjson.KeyIs(key, "nameservers"):
			own.nameservers, err = readStrings(value)
		case rawjson.KeyIs(key, "searches"):
			own.searches, err = readStrings(value)
		case rawjson.KeyIs(key, "options"):
			own.options, err = readOptionNames(value)
		}
		if err != nil {
			return ownConfig{}, err
		}
	}
	return own, nil
}

func readStrings(list rawjson.Value) ([]string, error) {
	if !list.Null() && list[0] != '[' {
		return nil, errDNSConfig
	}
	var out []string
	for element := range rawjson.Elements(list) {
		s, ok := element.String()
		if !ok {
			return nil, errDNSConfig
		}
		out = append(out, s)
	}
	return out, nil
}

func readOptionNames(list rawjson.Value) ([]string, error) {
	if !list.Null() && list[0] != '[' {
		return nil, errDNSConfig
	}
	var out []string
	for element := range rawjson.Elements(list) {
		if !element.Object() {
			return nil, errDNSConfig
		}
		name, _ := rawjson.Get(element, "name").String()
		out = append(out, name)
	}
	return out, nil
}

// nameservers lists the cache's addresses in the families the cluster DNS has, then the cluster DNS as fallback.
func nameservers(c Cluster, withoutFallback bool) []string {
	var out []string
	for _, local := range c.LocalIPs {
		if slices.ContainsFunc(c.ClusterIPs, func(ip netip.Addr) bool { return ip.Is4() == local.Is4() }) {
			out = append(out, local.String())
		}
	}
	if len(out) == 0 {
		// The families say nothing when the Service was given by flag; the address is what the operator set up.
		out = append(out, c.LocalIPs[0].String())
	}
	if withoutFallback {
		return out
	}
	return append(out, c.ClusterIPs[0].String())
}

// searches are what kubelet would write for ClusterFirst.
func searches(in Input) []string {
	domain := in.Cluster.Domain
	out := make([]string, 0, 3+len(in.Cluster.HostSearches))
	out = append(out, in.Namespace.Name+".svc."+domain, "svc."+domain, domain)
	return append(out, in.Cluster.HostSearches...)
}

// check refuses lists that the API refuses by themselves, before anything is done with them: they may be of megabytes.
func (own ownConfig) check() error {
	var errs []error
	if n := len(own.nameservers); n > maxNameservers {
		errs = append(errs, fmt.Errorf("%d nameservers of its own, at most %d are possible", n, maxNameservers))
	}
	if n := len(own.searches); n > maxSearches {
		errs = append(errs, fmt.Errorf("%d search domains of its own, at most %d are possible", n, maxSearches))
	}
	return errors.Join(errs...)
}

// roomFor tells whether the Pod can be created with a patch of ours if it can be without.
func roomFor(pod *Pod) error {
	// One that is much larger can only be created where etcd's limit was raised.
	if pod.size > maxObject-patchRoom && pod.size < maxObject/4*7 {
		return fmt.Errorf("the Pod has %d bytes, with ours it may be more than the API takes", pod.size)
	}
	// Escapes only make the text longer: what fits by its text fits.
	ours := len(ReplacedPolicyAnnotation) + len("ClusterFirstWithHostNet")
	if len(pod.Annotations)+ours <= maxAnnotations {
		return nil
	}
	total := ours
	for key, value := range rawjson.Members(pod.Annotations) {
		text, _ := value.String()
		total += len(rawjson.Key(key)) + len(text)
	}
	if total > maxAnnotations {
		return fmt.Errorf("annotations of %d bytes together with ours, at most %d are possible", total, maxAnnotations)
	}
	return nil
}

// merge puts the Pod's own settings behind the cluster's lists, as kubelet does, and lets its options win.
func merge(servers, searches []string, tuned tuning, own ownConfig) (Config, []string, error) {
	var warnings []string
	config := Config{
		Nameservers: appendNew(servers, own.nameservers...),
		Searches:    appendNew(searches, own.searches...),
	}
	if tuned.nameserver.IsValid() {
		if len(config.Nameservers) < maxNameservers {
			config.Nameservers = appendNew(config.Nameservers, tuned.nameserver.String())
		} else if !slices.Contains(config.Nameservers, tuned.nameserver.String()) {
			warnings = append(warnings, fmt.Sprintf("nodedns: namespace annotation %s ignored: the Pod has %d nameservers already",
				NameserverAnnotation, maxNameservers))
		}
	}
	for _, option := range tuned.options {
		if !slices.Contains(own.options, option.Name) {
			config.AddOptions = append(config.AddOptions, option)
		}
	}
	var errs []error
	if n := len(config.Nameservers); n > maxNameservers {
		errs = append(errs, fmt.Errorf("%d nameservers together with its own, at most %d are possible", n, maxNameservers))
	}
	if n := len(config.Searches); n > maxSearches {
		errs = append(errs, fmt.Errorf("%d search domains together with its own, at most %d are possible", n, maxSearches))
	}
	if n := len(strings.Join(config.Searches, " ")); n > maxSearchLength {
		errs = append(errs, fmt.Errorf("search domains of %d characters together with its own, at most %d are possible", n, maxSearchLength))
	}
	return config, warnings, errors.Join(errs...)
}

// appendNew appends what is not there yet, keeping the order and the first of equals.
func appendNew(list []string, more ...string) []string {
	out := make([]string, 0, len(list)+len(more))
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	for _, s := range more {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
