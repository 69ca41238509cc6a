package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/nodedns/nodedns/e2e/archive"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/load"
)

// PodSpec says what client Pod to create.
type PodSpec struct {
	Namespace string
	Name      string
	// Node pins the Pod; empty leaves it to the scheduler.
	Node        string
	HostNetwork bool
	DNSPolicy   corev1.DNSPolicy
	Labels      map[string]string
}

// A Pod is a running client Pod.
type Pod struct {
	// Object is the Pod as it was when it became ready.
	Object *corev1.Pod
	env    *Env
}

// CreateNamespace makes a namespace with labels, or sets them on one that exists.
func (e *Env) CreateNamespace(ctx context.Context, name string, labels map[string]string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := e.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the namespace %s: %w", name, err)
	}
	return host.Until(ctx, "the ServiceAccount of namespace "+name, 30*time.Second, func(ctx context.Context) error {
		_, err := e.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// CreatePod creates a Pod of the client image and returns when it is ready.
func (e *Env) CreatePod(ctx context.Context, s PodSpec) (*Pod, error) {
	grace := int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, Labels: s.Labels},
		Spec: corev1.PodSpec{
			HostNetwork: s.HostNetwork, DNSPolicy: s.DNSPolicy, TerminationGracePeriodSeconds: &grace,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "client", Image: archive.ClientImage,
				// As much as the cache asks for. With more, the load would slow down the end of a killed cache, which the kernel
				// carries out in the cache's own share of the node's only processor, its sockets still open.
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("25m")}},
			}},
		},
	}
	if s.Node != "" {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: s.Node}
	}
	pods := e.Client.CoreV1().Pods(s.Namespace)
	if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating the Pod %s: %w", s.Name, err)
	}
	err := host.Until(ctx, "the Pod "+s.Name, 120*time.Second, func(ctx context.Context) (err error) {
		if p, err = pods.Get(ctx, s.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !podReady(p) {
			return fmt.Errorf("the Pod is %s", p.Status.Phase)
		}
		return nil
	})
	if err != nil {
		return nil, e.explain(ctx, err, s.Namespace)
	}
	return &Pod{Object: p, env: e}, nil
}

// Exec runs a command in the Pod and returns what it wrote; stdin may be nil.
func (p *Pod) Exec(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	req := p.env.Client.CoreV1().RESTClient().Post().Resource("pods").SubResource("exec").
		Namespace(p.Object.Namespace).Name(p.Object.Name).
		VersionedParams(&corev1.PodExecOptions{Command: args, Stdin: stdin != nil, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	ex, err := remotecommand.NewWebSocketExecutor(p.env.RESTConfig(), "GET", req.URL().String())
	if err != nil {
		return "", fmt.Errorf("preparing to run %s: %w", args[0], err)
	}
	var out, errs bytes.Buffer
	if err := ex.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errs}); err != nil {
		return out.String(), fmt.Errorf("running %s in %s: %w: %s%s", strings.Join(args, " "), p.Object.Name, err, out.String(), errs.String())
	}
	return out.String(), nil
}

// A Load is an open-loop load that runs in a Pod.
type Load struct {
	input  *io.PipeWriter
	result chan loadResult
}

type loadResult struct {
	load.Result
	err error
}

// StartLoad starts an open-loop load in the Pod; args are further flags of its client.
func (p *Pod) StartLoad(ctx context.Context, args ...string) *Load {
	r, w := io.Pipe()
	l := &Load{input: w, result: make(chan loadResult, 1)}
	go func() {
		out, err := p.Exec(ctx, r, append([]string{"bed-client", "load"}, args...)...)
		_ = w.Close() // a load that ended by itself leaves someone reading
		var res load.Result
		if err == nil {
			err = json.Unmarshal([]byte(out), &res)
		}
		l.result <- loadResult{res, err}
	}()
	return l
}

// Running tells whether the load still runs, and if it does not, returns why.
func (l *Load) Running() error {
	select {
	case r := <-l.result:
		l.result <- r
		return fmt.Errorf("the load has ended after %d questions: %w", r.Queries, r.err)
	default:
		return nil
	}
}

// Stop ends the load and returns its result.
func (l *Load) Stop() (load.Result, error) {
	_ = l.input.Close()
	r := <-l.result
	if r.err != nil {
		return r.Result, fmt.Errorf("running the load: %w", r.err)
	}
	return r.Result, nil
}
