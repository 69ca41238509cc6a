package cluster

import "testing"

func TestCrowded(t *testing.T) {
	for name, c := range map[string]struct {
		at   []float64
		want bool
	}{
		"none":                               {nil, false},
		"one a kill":                         {[]float64{3000, 22000, 40000}, false},
		"as the rate has them":               {[]float64{3000, 3010, 3020, 3030}, false},
		"two at once":                        {[]float64{3000, 3001, 22000}, false},
		"seen on a machine that stood still": {[]float64{3125.916, 3126.797, 3127.539, 3129.092, 3130.05, 3125.321, 22450.632}, true},
	} {
		if got := (KillResult{RatePerSec: 100, FailedAtMS: c.at}).Crowded(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
