package resolver_test

import (
	"testing"

	"github.com/nodedns/nodedns/e2e/load"
	"github.com/nodedns/nodedns/e2e/resolver"
)

func TestParse(t *testing.T) {
	out := "asking\n0.010 1.200 192.0.2.2\n100.000 1000.000 error timeout\n200.000 3.000 error Name or service not known\n300.000 1.000 192.0.2.1\n"
	by := func(address string) string {
		if address == "192.0.2.2" {
			return load.ByCache
		}
		return load.ByClusterDNS
	}
	r, err := resolver.Parse([]byte(out), load.Config{Rate: 10}, by)
	if err != nil {
		t.Fatal(err)
	}
	if r.Queries != 4 || r.Failed != 2 || r.Errors["timeout"] != 1 || r.By[load.ByCache] != 1 || r.By[load.ByClusterDNS] != 1 || r.OutageMS != 200 {
		t.Errorf("four asked, two lost in a row of 200 ms, one answered by each; got %+v", r)
	}
	for _, bad := range []string{"one two", "x 1 192.0.2.1", "1 x 192.0.2.1"} {
		if _, err := resolver.Parse([]byte(bad), load.Config{Rate: 10}, by); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
