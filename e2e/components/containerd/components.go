//go:build components

// Package components pins the container runtime of the test bed: containerd, its shim for runc, and ctr.
package components

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
