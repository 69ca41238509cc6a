package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodedns/nodedns/e2e/cluster"
	"github.com/nodedns/nodedns/e2e/console"
)

// summary prints what a person should take home.
func summary(con *console.Console, r cluster.Report, file string) {
	k := r.Sigkill
	back := make([]string, 0, len(k.Events))
	for _, e := range k.Events {
		back = append(back, fmt.Sprintf("%.0f s", e.BackSeconds))
	}
	con.Plain("")
	con.Plain("Summary")
	con.Plain("  kube-proxy mode         %s", r.KubeProxyMode)
	con.Plain("  the Pod's nameservers   %s", strings.Join(r.PodNameservers, ", "))
	for _, name := range slices.Sorted(maps.Keys(r.Lookups)) {
		con.Plain("  resolved                %s %s", name, r.Lookups[name])
	}
	con.Plain("  counted by the cache    %d questions, %d of them hits (each name was asked twice)", r.CacheQueries, r.CacheHits)
	con.Plain("")
	con.Plain("  %d questions a second, a new socket each, 1 s deadline:", k.RatePerSec)
	con.Plain("                                     asked   failed  outage   p50      p99      answered by")
	row(con, "plain ClusterIP, nothing killed", k.BaselineQueries, k.BaselineFailed, k.BaselineOutageMS, k.BaselineP50MS, k.BaselineP99MS, k.BaselineBy)
	row(con, fmt.Sprintf("node cache, %d times SIGKILL", k.Kills), k.Queries, k.Failed, k.OutageMS, k.P50MS, k.P99MS, k.AnsweredBy)
	con.Plain("  the cache was back after %s (kubelet delays repeated restarts)", strings.Join(back, ", "))
	con.Plain("")
	con.Plain("  whole run %.0f s; report: %s", r.Seconds, file)
}

func row(con *console.Console, what string, asked, failed int, outage, p50, p99 float64, by map[string]int) {
	con.Plain("  %-33s  %6d  %6d  %4.0f ms  %5.1f ms  %5.1f ms  cache %d, cluster DNS %d",
		what, asked, failed, outage, p50, p99, by["cache"], by["cluster_dns"])
}
