package cluster_test

import (
	"testing"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/bedtest"
	"github.com/nodedns/nodedns/e2e/cluster"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
)

// TestCluster runs the whole story in one cluster, since a cluster takes most of a minute to start; what follows in the
// same cluster are its subtests.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole cluster is not for -short")
	}
	bedtest.Require(t, bed.Preflight(2))
	env, err := cluster.Start(t.Context(), console.New(t.Output()), []string{"ipvs", "ipvs"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		env.Stop()
		if err := host.Leftovers(); err != nil {
			t.Error(err)
		}
	})
	if !t.Run("Story", func(t *testing.T) {
		r, err := env.Tell(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Problems(); err != nil {
			t.Errorf("%v\nthe report: %+v", err, r)
		}
	}) {
		return
	}
	t.Run("Clients", func(t *testing.T) { testClients(t, env) })
	t.Run("BackstopProven", func(t *testing.T) { testBackstopProven(t, env) })
	t.Run("NotInjected", func(t *testing.T) { testNotInjected(t, env) })
	t.Run("CacheAway", func(t *testing.T) { testCacheAway(t, env) })
	t.Run("Uninstall", func(t *testing.T) { testUninstall(t, env) })
}
