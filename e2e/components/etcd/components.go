//go:build components

// Package components pins what the test bed stores its cluster in: etcd.
package components

import (
	_ "go.etcd.io/etcd/server/v3"
)
