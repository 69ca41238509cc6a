package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/load"
)

// What go test prints, with the output of a test program inside.
const output = `=== RUN   TestUML/ipvs-0
    uml_test.go:70: === RUN   TestKernelFailover
            failover_test.go:130: ipvs SIGKILL pod udp 100 questions
        CELL {"mode":"ipvs","guard":"socket","fault":"SIGKILL","client":"raw","transport":"udp","from":"pod","queries":100,"failed":1,"baseline_failed":0,"outage_ms":40.5,"answered_by":{"cache":60,"cluster_dns":39}}
            --- PASS: TestKernelFailover/SIGKILL (5.00s)
        chatter
--- FAIL: TestUML/ipvs-0 (60.00s)
`

func TestGather(t *testing.T) {
	var said, table bytes.Buffer
	g := &gatherer{con: console.New(&said)}
	for _, half := range []string{output[:200], output[200:]} {
		if n, err := g.Write([]byte(half)); err != nil || n != len(half) {
			t.Fatal(n, err)
		}
	}
	want := []load.Cell{{
		Mode: "ipvs", Guard: "socket", Fault: "SIGKILL", Client: "raw", Transport: "udp", From: "pod", Queries: 100, Failed: 1, OutageMS: 40.5,
		AnsweredBy: map[string]int{load.ByCache: 60, load.ByClusterDNS: 39},
	}}
	if diff := cmp.Diff(want, g.cells); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
	if text := said.String(); !strings.Contains(text, "FAIL: TestUML/ipvs-0") || !strings.Contains(text, "PASS: TestKernelFailover/SIGKILL") || strings.Contains(text, "chatter") {
		t.Errorf("said:\n%s", text)
	}
	printTable(&table, g.cells)
	if lines := strings.Split(strings.TrimSpace(table.String()), "\n"); len(lines) != 2 || !strings.Contains(lines[1], "ipvs  socket  SIGKILL  raw") {
		t.Errorf("table:\n%s", table.String())
	}
}
