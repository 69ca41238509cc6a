package certs

import (
	"bytes"
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
)

// Kube is the Cluster of a real one: a CA in a Secret, a MutatingWebhookConfiguration. It asks for both by name only,
// so that the right to them can be given by name.
type Kube struct {
	client        kubernetes.Interface
	namespace     string
	secret        string
	configuration string
}

// NewKube makes a Kube for the Secret namespace/secret and the MutatingWebhookConfiguration configuration.
func NewKube(client kubernetes.Interface, namespace, secret, configuration string) *Kube {
	return &Kube{client: client, namespace: namespace, secret: secret, configuration: configuration}
}

var _ Cluster = (*Kube)(nil)

// CA reads the CA certificate.
func (k *Kube) CA(ctx context.Context) ([]byte, error) {
	secret, err := k.client.CoreV1().Secrets(k.namespace).Get(ctx, k.secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("getting Secret %s/%s: %w", k.namespace, k.secret, err)
	}
	return secret.Data[corev1.TLSCertKey], nil
}

// Bundles reads the caBundle of each webhook.
func (k *Kube) Bundles(ctx context.Context) ([][]byte, error) {
	configuration, err := k.get(ctx)
	if configuration == nil || err != nil {
		return nil, err
	}
	bundles := make([][]byte, 0, len(configuration.Webhooks))
	for i := range configuration.Webhooks {
		bundles = append(bundles, configuration.Webhooks[i].ClientConfig.CABundle)
	}
	return bundles, nil
}

// SetBundle changes the caBundle of every webhook; if another has written in between, it starts anew from that.
func (k *Kube) SetBundle(ctx context.Context, change func([]byte) []byte) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		configuration, err := k.get(ctx)
		if configuration == nil || err != nil {
			return err
		}
		changed := false
		for i := range configuration.Webhooks {
			client := &configuration.Webhooks[i].ClientConfig
			want := change(client.CABundle)
			changed = changed || !bytes.Equal(want, client.CABundle)
			client.CABundle = want
		}
		if !changed {
			return nil
		}
		if _, err := k.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(ctx, configuration, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("updating MutatingWebhookConfiguration %s: %w", k.configuration, err)
		}
		return nil
	})
}

// get reads the configuration, nil if there is none.
func (k *Kube) get(ctx context.Context) (*admissionv1.MutatingWebhookConfiguration, error) {
	configuration, err := k.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, k.configuration, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("getting MutatingWebhookConfiguration %s: %w", k.configuration, err)
	}
	return configuration, nil
}

// Watch tells of every change of the configuration.
func (k *Kube) Watch(ctx context.Context, changed chan<- struct{}) error {
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, k.configuration).String()
	}))
	signal := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	informer := factory.Admissionregistration().V1().MutatingWebhookConfigurations().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: signal, UpdateFunc: func(_, object any) { signal(object) }, DeleteFunc: signal,
	}); err != nil {
		return fmt.Errorf("watching MutatingWebhookConfiguration %s: %w", k.configuration, err)
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}
