package house_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestWords keeps out what a user's copy cannot know: paths of one machine, hosts
// that packages came from on one day, and work that says of itself it is unfinished.
func TestWords(t *testing.T) {
	rules := map[string]*regexp.Regexp{
		"path of one machine": regexp.MustCompile(`(^|[\s"'=(])/(work|home)/[a-z]`),
		"registry host":       regexp.MustCompile(`proxy[.]golang[.]org|registry[.]npmjs|deb[.]debian[.]org`),
		"unfinished":          regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`),
	}
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	for name := range bytes.SplitSeq(bytes.Trim(out, "\x00"), []byte{0}) {
		file := string(name)
		if filepath.Base(file) == "go.sum" || filepath.Base(file) == "LICENSE" {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil || bytes.IndexByte(text, 0) >= 0 {
			continue // deleted in the work tree, or binary
		}
		for why, re := range rules {
			if hit := re.Find(text); hit != nil {
				t.Errorf("%s: %s: %q", file, why, hit)
			}
		}
	}
}
