// Package bedtest is the door by which tests enter the test bed: it skips or fails where the machine cannot carry it,
// and cleans up when the test ends.
//
// A test that cannot run here skips with the reason, except under REQUIRE_KERNEL=1, where it fails: a tier that was not
// run must not look like one that passed.
//
//	cp := bedtest.ControlPlane(t, bed.Config{})
//	client := kubernetes.NewForConfigOrDie(cp.RESTConfig())
package bedtest

import (
	"os"
	"testing"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

// Require skips the test, or fails it under REQUIRE_KERNEL=1, when reason is not nil.
func Require(t testing.TB, reason error) {
	t.Helper()
	switch {
	case reason == nil:
	case os.Getenv("REQUIRE_KERNEL") == "1":
		t.Fatalf("REQUIRE_KERNEL=1, but: %v", reason)
	default:
		t.Skip(reason)
	}
}

// Build builds what a control plane is made of, for tests that start it themselves. Short tests (-short) skip: the first
// build takes minutes.
func Build(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("a control plane is not for -short")
	}
	Require(t, host.Preflight(host.Needs{Root: true}))
	if _, err := parts.Build(t.Context(), console.New(t.Output()), parts.ControlPlane()); err != nil {
		t.Fatal(err)
	}
}

// ControlPlane starts a control plane that ends with the test.
func ControlPlane(t testing.TB, cfg bed.Config) *bed.ControlPlane {
	t.Helper()
	Build(t)
	if cfg.Console == nil {
		cfg.Console = console.New(t.Output())
	}
	cp, err := bed.StartControlPlane(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	return cp
}
