package main

import (
	"fmt"
	"net/http"

	"github.com/nodedns/nodedns/cache/internal/node"
)

// needing is /ready with a question: /ready?need=backstop asks besides whether guard and backstop stand in for this cache
// for as long as it takes when it dies. That is for a DaemonSet whose Pods shall have no other way to cluster DNS; for
// all others a cache that answers is ready, whatever its kernel lacks.
func (w *web) needing(plain, lasting http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch need := r.URL.Query().Get("need"); need {
		case "":
			plain.ServeHTTP(rw, r)
		case "backstop":
			lasting.ServeHTTP(rw, r)
		default:
			http.Error(rw, fmt.Sprintf("need=%q is not understood; there is need=backstop", need), http.StatusBadRequest)
		}
	})
}

// lasting lists what speaks against that.
func (w *web) lasting() []string {
	if w.node == nil || !w.rules {
		return []string{"no backstop: this process sets up no rules"}
	}
	var out []string
	if mode := w.node.Mode(); mode != node.IPVS {
		out = append(out, fmt.Sprintf("no lasting backstop with kube-proxy mode %s: its endpoints are followed only while the cache lives", mode))
	}
	if w.node.Level() <= node.LevelPlain {
		out = append(out, "no guard: the rules of a dead cache would stay in the way of the backstop")
	}
	if !w.node.InService() {
		out = append(out, "the rules do not lead to this cache")
	}
	if w.leave == node.LeaveAll {
		out = append(out, "-teardown=all takes the backstop away at exit")
	}
	for _, problem := range w.node.Problems() {
		out = append(out, "not set up: "+problem)
	}
	return out
}
