// Package taint takes the startup taint from a Node as soon as that node's cache has been ready since its boot. It owns
// that one taint and leaves every other alone; it never sets it: that is for whoever registers the node.
package taint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Config of a Controller.
type Config struct {
	// Key of the taint, any effect.
	Key string
	// Interval is how often nodes are looked at. Zero: 1 s.
	Interval time.Duration
}

// Validate lists every problem of c.
func (c Config) Validate() error {
	var errs []error
	for _, problem := range validation.IsQualifiedName(c.Key) {
		errs = append(errs, fmt.Errorf("startup taint %q: %s", c.Key, problem))
	}
	if c.Interval < 0 {
		errs = append(errs, fmt.Errorf("interval %s: want a positive duration", c.Interval))
	}
	return errors.Join(errs...)
}

// Nodes reads and patches Nodes in the API.
type Nodes interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Controller is run by one replica at a time.
type Controller struct {
	cfg   Config
	list  func() []*corev1.Node // as known, at least with name and taints; not to be changed
	ready func(node string) bool
	nodes Nodes
	log   *slog.Logger
}

// New makes a Controller that learns from list what Nodes there are and from ready which have a cache.
func New(cfg Config, list func() []*corev1.Node, ready func(string) bool, nodes Nodes, log *slog.Logger) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Interval == 0 {
		cfg.Interval = time.Second
	}
	return &Controller{cfg: cfg, list: list, ready: ready, nodes: nodes, log: log}, nil
}

// Run removes the taint where it is due until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	ticker := time.NewTicker(c.cfg.Interval)
	defer ticker.Stop()
	for {
		for _, node := range c.list() {
			if c.has(node) && c.ready(node.Name) && ctx.Err() == nil {
				c.remove(ctx, node.Name)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (c *Controller) has(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == c.cfg.Key })
}

// remove writes the other taints, on condition that nobody has written the Node since it was read; a conflict is left
// for the next round.
func (c *Controller) remove(ctx context.Context, name string) {
	node, err := c.nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil || !c.has(node) {
		if err != nil && !apierrors.IsNotFound(err) {
			c.log.Warn("startup taint not removed, trying again", "node", name, "error", err)
		}
		return
	}
	kept := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == c.cfg.Key })
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": kept},
	})
	if err != nil {
		c.log.Error("encoding a patch", "error", err)
		return
	}
	switch _, err := c.nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); {
	case err == nil:
		c.log.Info("startup taint removed", "node", name)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), ctx.Err() != nil:
	default:
		c.log.Warn("startup taint not removed, trying again", "node", name, "error", err)
	}
}
