// Package resolver is an open-loop load through the resolvers of C libraries: what a program in a Pod does that is linked
// with glibc or with musl, timeouts, retries and second nameservers included. It builds the program and reads what it
// prints; where the program runs, and with which resolv.conf, is the caller's business.
//
//	p, err := resolver.Build(ctx, dir)
//	cmd := exec.Command(p.Glibc, resolver.Args(25, time.Second, names)...)
//	… // ends when its standard input does
//	result, err := resolver.Parse(out, cfg, by)
package resolver

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nodedns/nodedns/e2e/load"
)

//go:embed source/load.c
var source string

// Asking is the first line the program prints, when it begins.
const Asking = "asking"

// Programs are the built programs, one a C library.
type Programs struct{ Glibc, Musl string }

// Build compiles the programs into a folder.
func Build(ctx context.Context, dir string) (Programs, error) {
	p := Programs{Glibc: filepath.Join(dir, "load-glibc"), Musl: filepath.Join(dir, "load-musl")}
	for _, args := range [][]string{{"gcc", "-O1", "-pthread", "-o", p.Glibc}, {"musl-gcc", "-O1", "-static", "-pthread", "-o", p.Musl}} {
		cmd := exec.CommandContext(ctx, args[0], append(args[1:], "-x", "c", "-")...)
		cmd.Stdin = strings.NewReader(source)
		if out, err := cmd.CombinedOutput(); err != nil {
			return Programs{}, fmt.Errorf("compiling a resolver's load (Debian packages gcc, libc6-dev, musl-tools): %w: %s", err, out)
		}
	}
	return p, nil
}

// Args are the program's arguments.
func Args(rate int, deadline time.Duration, names []string) []string {
	return append([]string{strconv.Itoa(rate), strconv.FormatInt(deadline.Milliseconds(), 10)}, names...)
}

// Parse reads what the program printed. c says what was asked, by tells from an address who gave it.
func Parse(out []byte, c load.Config, by func(address string) string) (load.Result, error) {
	var answers []load.Answer
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		line := s.Text()
		if line == Asking {
			continue
		}
		fields := strings.SplitN(line, " ", 3)
		if len(fields) != 3 {
			return load.Result{}, fmt.Errorf("reading a resolver's load: %q is no answer", line)
		}
		var a load.Answer
		var err error
		if a.SentMS, err = strconv.ParseFloat(fields[0], 64); err != nil {
			return load.Result{}, fmt.Errorf("reading a resolver's load: %w", err)
		}
		if a.TookMS, err = strconv.ParseFloat(fields[1], 64); err != nil {
			return load.Result{}, fmt.Errorf("reading a resolver's load: %w", err)
		}
		if why, failed := strings.CutPrefix(fields[2], "error "); failed {
			a.Error = why
		} else {
			a.By = by(fields[2])
		}
		answers = append(answers, a)
	}
	r := load.Summarize(c, answers, time.Time{})
	if n := len(answers); n > 0 {
		r.Seconds = answers[n-1].SentMS/1000 + 1/float64(c.Rate)
	}
	return r, nil
}
