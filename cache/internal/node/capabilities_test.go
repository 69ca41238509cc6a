package node

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nodedns/nodedns/e2e/load"
)

// TestKernelCapabilities runs the cache with exactly the capabilities it needs, on a read-only root, and then without
// each of them, which shows that none is one too many.
func TestKernelCapabilities(t *testing.T) {
	inKernelWithCache(t, settings(1, "ipvs", "nftables", "iptables-legacy"), func(t *testing.T, p place) {
		needed := []string{"+net_admin", "+net_bind_service"}
		if p.flavour == Legacy {
			needed = append(needed, "+net_raw") // the legacy command opens a raw socket
		}
		r := newRig(t, p)
		r.caps = "-all," + strings.Join(needed, ",")
		r.start(t)
		var got map[string]load.Result
		for range 3 { // again while the machine is in the way, as with faults
			if got = r.during(t, r.raws(r.target()), func() { time.Sleep(time.Second) }); !disturbed(got, fault{}) && !stalled(got[baseline]) {
				break
			}
		}
		for name, res := range got {
			if name != baseline && (res.Failed > 0 || res.By[load.ByCache] == 0) {
				t.Errorf("%s: %d of %d failed, answered by %v", name, res.Failed, res.Queries, res.By)
			}
		}
		for line := range bytes.SplitSeq(r.log(t), []byte("\n")) {
			// The host's kernel may have no dummy links.
			if bytes.Contains(line, []byte("level=ERROR")) && !bytes.Contains(line, []byte("dummy")) {
				t.Errorf("the cache said: %s", line)
			}
		}
		r.kill(t)
		for i, missing := range needed {
			if p.uml && i > 0 {
				break // a start takes seconds there
			}
			t.Run("without "+missing[1:], func(t *testing.T) {
				r.caps = "-all," + strings.Join(append(append([]string{}, needed[:i]...), needed[i+1:]...), ",")
				if r.caps == "-all," {
					r.caps = "-all"
				}
				r.launch(t)
				word := strings.ToUpper(missing[1:])
				if missing == "+net_bind_service" {
					word = "permission denied"
				}
				within(t, 20*time.Second, "said that "+word+" is missing", func() bool { return bytes.Contains(r.log(t), []byte(word)) })
				_ = r.cache.Process.Kill()
				<-r.done
				r.cache = nil
			})
		}
	})
}
