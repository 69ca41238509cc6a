// Command certmanager is as much of cert-manager as the manifests of this repository ask for: its own controllers for
// Certificates, Issuers and requests (CA and self-signed), and its CA injector, in one process and without a Deployment.
//
//	certmanager -kubeconfig FILE
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"

	cmscheme "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned/scheme"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/util"
	"golang.org/x/sync/errgroup"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	apireg "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	flags := flag.NewFlagSet("certmanager", flag.ExitOnError) // the common set has a kubeconfig already
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig file")
	_ = flags.Parse(os.Args[1:]) // exits on an error
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	ctrl.SetLogger(klog.Background())
	if err := run(ctx, *kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, "certmanager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string) error {
	group, ctx := errgroup.WithContext(ctx)
	if err := controllers(ctx, group, kubeconfig); err != nil {
		return err
	}
	if err := injector(ctx, group, kubeconfig); err != nil {
		return err
	}
	return group.Wait()
}

// controllers starts every controller whose package is imported above: each registers itself.
func controllers(ctx context.Context, group *errgroup.Group, kubeconfig string) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig: kubeconfig, KubernetesAPIQPS: 100, KubernetesAPIBurst: 200,
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Second, CertificateRequestMaximumBackoffDuration: time.Minute,
		},
	})
	if err != nil {
		return fmt.Errorf("setting up the controllers: %w", err)
	}
	var names []string
	for name, make := range controller.Known() {
		c, err := make(factory)
		if err != nil {
			return fmt.Errorf("making controller %s: %w", name, err)
		}
		names = append(names, name)
		group.Go(func() error { return c.Run(2, ctx) })
	}
	slices.Sort(names)
	fmt.Fprintln(os.Stderr, "controllers:", strings.Join(names, " "))
	shared, err := factory.Build()
	if err != nil {
		return fmt.Errorf("starting the informers: %w", err)
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	return nil
}

func injector(ctx context.Context, group *errgroup.Group, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kscheme.AddToScheme, cmscheme.AddToScheme, apiext.AddToScheme, apireg.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("making the scheme: %w", err)
		}
	}
	config = util.RestConfigWithUserAgent(config, "cainjector") // its field manager is made from that
	manager, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return fmt.Errorf("setting up the CA injector: %w", err)
	}
	if err := cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor:        map[string]bool{cainjector.MutatingWebhookConfigurationName: true},
	}); err != nil {
		return fmt.Errorf("setting up the CA injector: %w", err)
	}
	group.Go(func() error { return manager.Start(ctx) })
	return nil
}
