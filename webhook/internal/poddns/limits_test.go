package poddns

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// decided is the decision on a Pod with that metadata and spec where everything is ready.
func decided(t *testing.T, metadata, spec string) (Decision, []byte) {
	t.Helper()
	pod, err := Parse([]byte(`{"metadata":` + metadata + `,"spec":` + spec + `}`))
	if err != nil {
		t.Fatal(err)
	}
	d := Decide(pod, goldenInput{}.input(t))
	return d, Patch(pod, d)
}

// Lists that the API would refuse are not merged with ours: the API server sends them before it looks at them, and what
// grows with their square would take minutes.
func TestHugeListsAreRefusedAtOnce(t *testing.T) {
	for _, member := range []string{"searches", "nameservers"} {
		var list strings.Builder
		for i := range 150_000 {
			fmt.Fprintf(&list, `,"d%d.example"`, i)
		}
		begin := time.Now()
		d, patch := decided(t, `{}`, `{"dnsConfig":{"`+member+`":[`+list.String()[1:]+`]}}`)
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("%s: decided after %s", member, took)
		}
		if d.Reason != OverLimit || patch != nil || len(d.Warnings) != 1 || !strings.Contains(d.Warnings[0], "150000") {
			t.Errorf("%s: %s, %q", member, d.Reason, d.Warnings)
		}
	}
}

// A Pod that fits the API's limits by itself must fit them with what is added.
func TestNoPodIsMadeTooLarge(t *testing.T) {
	ours := len(ReplacedPolicyAnnotation) + len("ClusterFirstWithHostNet")
	key := "example.com/notes"
	fits := maxAnnotations - ours - len(key)
	for name, tt := range map[string]struct {
		metadata, spec string
		want           Reason
	}{
		"annotations that fit":                {fmt.Sprintf(`{"annotations":{%q:%q}}`, key, strings.Repeat("x", fits)), `{}`, Injected},
		"annotations that do not":             {fmt.Sprintf(`{"annotations":{%q:%q}}`, key, strings.Repeat("x", fits+1)), `{}`, OverLimit},
		"escapes do not count":                {fmt.Sprintf(`{"annotations":{%q:"%s"}}`, key, strings.Repeat(`\n`, fits)), `{}`, Injected},
		"a Pod as large as etcd takes":        {`{}`, fmt.Sprintf(`{"x":%q}`, strings.Repeat("x", maxObject-100)), OverLimit},
		"a Pod of 2.9 MB, for a raised limit": {`{}`, fmt.Sprintf(`{"x":%q}`, strings.Repeat("x", 2_900_000)), Injected},
		"a Pod of 1.49 MiB":                   {`{}`, fmt.Sprintf(`{"x":%q}`, strings.Repeat("x", 1490<<10)), Injected},
	} {
		d, patch := decided(t, tt.metadata, tt.spec)
		if d.Reason != tt.want || (patch != nil) != (tt.want == Injected) || (len(d.Warnings) > 0) != (tt.want == OverLimit) {
			t.Errorf("%s: %s, %q, patch %.50s", name, d.Reason, d.Warnings, patch)
		}
		if len(patch) > patchRoom {
			t.Errorf("%s: a patch of %d bytes, %d were left", name, len(patch), patchRoom)
		}
	}
}
