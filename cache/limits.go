package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory makes the garbage collector keep to the limit and returns it, 0 for none. Past nine tenths of a container's
// limit it works harder rather than let the kernel kill the process; the caches themselves get half of it, see builder.share.
// The collector runs at half its usual slack, since what is live here is a cache that hardly changes.
func limitMemory(want int64, log *slog.Logger) int64 {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(50)
	}
	if want == autoMemory {
		if want = containerLimit("/proc/self/cgroup", "/sys/fs/cgroup"); want > 0 {
			want = want / 10 * 9
		}
	}
	if want > 0 {
		debug.SetMemoryLimit(want)
		log.Info("memory limit", "bytes", want)
	}
	return want
}

// containerLimit reads the least memory limit of this process's control groups, version 2 or 1; 0 when there is none. In a
// container with a cgroup namespace the mount itself is the container's group.
func containerLimit(self, mount string) int64 {
	groups, err := os.ReadFile(self)
	if err != nil {
		return 0
	}
	least := int64(0)
	take := func(file string) {
		b, err := os.ReadFile(file)
		if err != nil {
			return
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no number
		if err == nil && n > 0 && n < 1<<60 && (least == 0 || n < least) {
			least = n
		}
	}
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, name := mount, "memory.max"
		switch {
		case parts[1] == "":
		case strings.Contains(","+parts[1]+",", ",memory,"):
			root, name = filepath.Join(mount, "memory"), "memory.limit_in_bytes"
		default:
			continue
		}
		for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
			take(filepath.Join(root, dir, name))
			if dir == "/" {
				break
			}
		}
	}
	return least
}
