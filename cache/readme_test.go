package main

import (
	"flag"
	"testing"

	"github.com/nodedns/nodedns/e2e/house"
)

var update = flag.Bool("update", false, "write the README's tables anew")

// TestREADME keeps the README's tables what this program says.
func TestREADME(t *testing.T) {
	fs, _ := newFlagSet()
	house.Section(t, "../README.md", "Flags of nodedns-cache", house.Flags(fs), *update)
	house.Section(t, "../README.md", "Metrics of nodedns-cache", house.Metrics(newMetrics().registry, "coredns_", "nodedns_"), *update)
}
