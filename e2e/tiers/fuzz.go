package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

type fuzzTarget struct{ pkg, name string }

// fuzz runs the targets one by one: go test takes one at a time.
func (r *runner) fuzz(ctx context.Context, t tier, n *tally) error {
	targets, err := fuzzTargets(r.root, t.args)
	if err != nil {
		return err
	}
	var failed error
	for _, f := range targets {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.con.Step("%s in %s, -fuzztime %s", f.name, f.pkg, r.fuzztime)
		failed = errors.Join(failed, r.goTest(ctx, t, n,
			"-run=^$", "-fuzz=^"+f.name+"$", "-fuzztime="+r.fuzztime, "-fuzzminimizetime=1000x", f.pkg))
	}
	return failed
}

// fuzzTargets finds the targets below folders by reading their sources. go test -list would compile every test there is.
func fuzzTargets(root string, folders []string) ([]fuzzTarget, error) {
	declared := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)
	var out []fuzzTarget
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			for _, m := range declared.FindAllSubmatch(text, -1) {
				out = append(out, fuzzTarget{"./" + filepath.ToSlash(pkg), string(m[1])})
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("looking for fuzz targets: %w", err)
		}
	}
	return out, nil
}
