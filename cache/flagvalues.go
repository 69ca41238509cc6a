package main

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodedns/nodedns/cache/internal/node"
)

// parseLocalIPs reads -localip. Loopback is for a process that does not set up a node, which is checked later.
func parseLocalIPs(list string) ([]netip.Addr, error) {
	addrs, err := node.ParseAddrs(list)
	if err == nil {
		return addrs, nil
	}
	if loop, lerr := parseAddrs(list); lerr == nil && len(loop) > 0 && !slices.ContainsFunc(loop, func(a netip.Addr) bool { return !a.IsLoopback() }) {
		return loop, nil
	}
	return nil, err
}

// parseAddrs reads any addresses, separated by commas; empty elements and spaces are ignored, duplicates merged.
func parseAddrs(list string) ([]netip.Addr, error) {
	var out []netip.Addr
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("%q is not an IP address", s)
		}
		if !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no address in %q", list)
	}
	return out, nil
}

func parsePort(s string, fail func(error)) uint16 {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		fail(fmt.Errorf("%q; allowed: 1 to 65535", s))
	}
	return uint16(n)
}

// secondsOrDuration reads a bare number as seconds, which is what the incumbent's help promises and its parser refuses.
func secondsOrDuration(s string) (time.Duration, error) {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		s = strconv.FormatUint(n, 10) + "s"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q; allowed: a number of seconds or a duration such as 1m", s)
	}
	return d, nil
}

// autoMemory stands for the limit of the container.
const autoMemory = -1

func parseBytes(s string) (int64, error) {
	if s == "auto" {
		return autoMemory, nil
	}
	number, factor := s, int64(1)
	for _, u := range []struct {
		suffix string
		factor int64
	}{{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"K", 1e3}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}} {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			number, factor = n, u.factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%q; allowed: auto, 0, or bytes such as 134217728 or 128Mi", s)
	}
	return n * factor, nil
}
