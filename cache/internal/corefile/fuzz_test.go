package corefile

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse: whatever the text, Parse ends, does not panic, and what it accepts has a canonical text that means the same.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.corefile")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	for _, s := range []string{
		"(a) {\nimport b\n}\n. {\nimport a\n}", "10.0.0.0/9 {\nwhoami\n}", ".:53 {\nforward . {$X} tls://1.1.1.1%a.b:5\n}", "\"", "{", "}", "a, b\n{\n}",
		". {\nrewrite {\nname regex (a) {1} answer name b c\n}\n}", ". {\nlog a b \"{x\"\nhosts a b {\n1.1.1.1 x\nfallthrough\n}\n}",
		". {\ntemplate IN A x {\nmatch ^a$ \" b\"\nederror 1\n}\n}", ". {\nprefetch\ncache {\nprefetch 1 1ns 10%\n}\n}", "\\044 {\n}", ". {\nhosts \\044 {\n1.1.1.1 a\\044b\n}\n}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		opts := nodeOptions()
		opts.ReadFile = func(string) ([]byte, error) { return nil, os.ErrNotExist }
		cfg, err := Parse("Corefile", text, opts)
		if err != nil {
			return
		}
		canonical := cfg.String()
		again, err := Parse("Corefile", canonical, opts)
		if err != nil {
			t.Fatalf("accepted:\n%s\nits canonical text:\n%s\nis not: %v", text, canonical, err)
		}
		if got := again.String(); got != canonical {
			t.Fatalf("canonical text:\n%s\nparsed again:\n%s", canonical, got)
		}
	})
}
