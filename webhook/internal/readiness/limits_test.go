package readiness

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// Placements of megabytes, which users may write, are neither kept nor matched with every node.
func TestHugePlacementsCostNothing(t *testing.T) {
	tracker := fleet(t, 5000, 1, Config{Grace: -1})
	huge := placement(t, `{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[`+
		strings.Repeat(`{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]},`, 40_000)+`{}]}}}}`)
	begin := time.Now()
	if got := tracker.State(huge); got != poddns.CachesReady {
		t.Errorf("state %d, want the whole cluster's", got)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("decided after %s", took)
	}
	tracker = fleet(t, 50, 1, Config{Grace: -1})
	for i := range memory {
		p := placement(t, fmt.Sprintf(`{"nodeSelector":{"kubernetes.io/hostname":"n%d","pad":"%s"}}`, i, strings.Repeat("x", placementLimit-100)))
		tracker.State(p)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	tracker.verdicts.Clear()
	runtime.GC()
	runtime.ReadMemStats(&before)
	if kept := int(after.HeapAlloc) - int(before.HeapAlloc); kept > 1<<20 {
		t.Errorf("%d bytes kept for %d placements", kept, memory)
	}
}
