package certs

import (
	"testing"
	"testing/synctest"
	"time"
)

// A CA made by a replica whose clock is far ahead is not served under before it is valid, by an API server that is late
// as well.
func TestW03ClockAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		sources, stop := start(t, s, 2, discard())
		defer stop()
		time.Sleep(40 * time.Second)
		first, _ := s.held()
		api := &apiServer{lag: 10 * time.Second, skew: 20 * time.Second}
		for i := range 800 {
			time.Sleep(500 * time.Millisecond)
			for n, source := range sources {
				if err := api.call(t, s, source, "hook.ns.svc"); err != nil && i > 60 { // the history fills until then
					t.Fatalf("call %d: replica %d: %v", i, n, err)
				}
			}
			if i == 80 {
				s.mu.Lock()
				s.ahead, s.cert = 2*time.Minute, nil
				s.mu.Unlock()
			}
		}
		if now, _ := s.held(); now == first {
			t.Fatal("no new CA")
		}
		for n, source := range sources {
			pair, err := source.GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			if err := pair.Leaf.CheckSignatureFrom(s.cert); err != nil {
				t.Errorf("replica %d does not serve under the new CA when it is valid: %v", n, err)
			}
			s.mu.Unlock()
		}
	})
}
