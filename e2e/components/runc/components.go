//go:build components

// Package components pins what starts the containers of the test bed: runc.
package components

import (
	_ "github.com/opencontainers/runc"
)
