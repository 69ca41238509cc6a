package admit

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodedns/nodedns/webhook/internal/poddns"
)

// Large bodies that are sent slowly take a bounded memory, and keep no ordinary review waiting.
func TestSlowLargeReviewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, ready(), poddns.Policy{}, nil)
		begin := func(length int64, body io.Reader) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mutate", body)
			r.Header.Set("Content-Type", "application/json")
			r.ContentLength = length
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		const large = 3 << 20
		var pipes []*io.PipeWriter
		var slow sync.WaitGroup
		for range largeBudget / large {
			body, sender := io.Pipe()
			pipes = append(pipes, sender)
			slow.Go(func() { begin(large, body) })
		}
		synctest.Wait()

		at := time.Now()
		if out := reviewed(t, h, request("shop", bare)); out.patch(t) == nil || time.Since(at) > 0 {
			t.Errorf("an ordinary review took %s, patch %s", time.Since(at), out.patch(t))
		}
		for name, length := range map[string]int64{"of known length": large, "of unknown length": -1} {
			at = time.Now()
			if w := begin(length, strings.NewReader("{}")); w.Code != http.StatusServiceUnavailable || time.Since(at) != budgetPatience {
				t.Errorf("one more %s: status %d after %s", name, w.Code, time.Since(at))
			}
		}
		for _, sender := range pipes {
			if err := sender.Close(); err != nil {
				t.Error(err)
			}
		}
		slow.Wait()
		if w := begin(large, strings.NewReader("{}")); w.Code != http.StatusOK {
			t.Errorf("after they have ended: status %d", w.Code)
		}
	})
}
