package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/nodedns/nodedns/cache/internal/ops"
)

// build reads what the Go toolchain stamped into the binary.
func build() ops.Build {
	b := ops.Build{Version: "dev", Revision: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

func versionText() string {
	b := build()
	return fmt.Sprintf("nodedns-cache %s (%s, %s, %s/%s)", b.Version, b.Revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
