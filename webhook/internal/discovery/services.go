package discovery

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// upstream is the cache's own way to the cluster DNS; it bears the label of the Service it stands beside.
const upstream = "kube-dns-upstream"

// service is a Service that may be the cluster DNS.
type service struct {
	name string
	rank int // lower is better
	ips  []netip.Addr
}

// SetService takes in a Service as it is now.
func (d *Discovery) SetService(object *corev1.Service) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.candidate(object); ok {
		d.services[object.Name] = s
	} else {
		delete(d.services, object.Name)
	}
	d.settleLocked()
}

// DeleteService forgets a Service.
func (d *Discovery) DeleteService(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.services, name)
	d.settleLocked()
}

// candidate tells whether the Service can be the cluster DNS. Kubespray calls it coredns, RKE2 after its chart; the
// label is the same with nearly all.
func (d *Discovery) candidate(object *corev1.Service) (service, bool) {
	s := service{name: object.Name}
	switch {
	case d.cfg.Service != "":
		if object.Name != d.cfg.Service {
			return service{}, false
		}
	case object.Name == upstream:
		return service{}, false
	case object.Name == "kube-dns":
		s.rank = 1
	case object.Name == "coredns" || object.Name == "rke2-coredns-rke2-coredns":
		s.rank = 2
	case object.Labels["k8s-app"] == "kube-dns":
		s.rank = 3
	default:
		return service{}, false
	}
	if !slices.ContainsFunc(object.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == 53 && p.Protocol == corev1.ProtocolUDP
	}) {
		return service{}, false
	}
	for _, text := range clusterIPs(object) {
		ip, err := netip.ParseAddr(text)
		if err != nil || slices.Contains(d.cfg.LocalIPs, ip) { // "None" for a headless one
			continue
		}
		s.ips = append(s.ips, ip)
	}
	return s, len(s.ips) > 0
}

func clusterIPs(object *corev1.Service) []string {
	if len(object.Spec.ClusterIPs) > 0 {
		return object.Spec.ClusterIPs
	}
	return []string{object.Spec.ClusterIP}
}

// chooseLocked takes the Service that kubelet itself hands out, if its address is among them, else the best name. Two
// of the same rank with nothing to choose by are no answer.
func (d *Discovery) chooseLocked() []netip.Addr {
	all := make([]service, 0, len(d.services))
	for _, s := range d.services {
		for _, ip := range s.ips {
			if slices.Contains(d.resolver.Nameservers, ip) {
				return s.ips
			}
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b service) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name)) })
	if len(all) > 1 && all[0].rank == all[1].rank && !slices.Equal(all[0].ips, all[1].ips) {
		return nil
	}
	return all[0].ips
}

// Informer is the part of a client-go informer that feeding needs.
type Informer interface {
	SetTransform(cache.TransformFunc) error
	AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
}

// Feed lets the Services of kube-system flow into d; the informer must not have started yet.
func Feed(d *Discovery, services Informer) (cache.ResourceEventHandlerRegistration, error) {
	if err := services.SetTransform(trimService); err != nil {
		return nil, fmt.Errorf("setting the transform of Services: %w", err)
	}
	registration, err := services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { d.SetService(object.(*corev1.Service)) },
		UpdateFunc: func(_, object any) { d.SetService(object.(*corev1.Service)) },
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			if s, ok := object.(*corev1.Service); ok {
				d.DeleteService(s.Name)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching Services: %w", err)
	}
	return registration, nil
}

func trimService(object any) (any, error) {
	in, ok := object.(*corev1.Service)
	if !ok {
		return object, nil
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: in.Name, Namespace: in.Namespace, ResourceVersion: in.ResourceVersion, Labels: in.Labels},
		Spec:       corev1.ServiceSpec{ClusterIP: in.Spec.ClusterIP, ClusterIPs: in.Spec.ClusterIPs, Ports: in.Spec.Ports},
	}, nil
}
