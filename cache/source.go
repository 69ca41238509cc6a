package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/ops"
)

// source reads the configuration from its files. Each load reads everything anew, so it does not matter how a file was
// changed: edited in place, renamed over, or swapped by a symlink as the kubelet does with ConfigMaps.
//
// Order of precedence: -basecorefile if it exists, else -conf, else, if neither flag was given, the built-in Corefile. The
// placeholders are replaced in whichever it is, and nothing is written: what is served can never be an older rendering.
type source struct {
	log     *slog.Logger
	metrics *ops.ProcessMetrics
	base    string // may be empty
	conf    string
	kubeDNS string // directory
	builtIn bool   // use the built-in Corefile when there is no file
	opts    corefile.Options

	lastKube corefile.KubeDNS // last good one
	noted    map[string]string
}

func newSource(o *options, opts corefile.Options, log *slog.Logger, metrics *ops.ProcessMetrics) *source {
	s := &source{log: log, metrics: metrics, base: o.base, conf: o.conf, kubeDNS: o.kubeDNSDir, opts: opts, noted: make(map[string]string)}
	s.builtIn = !o.set["basecorefile"] && !o.set["conf"] && !o.set["corefile"]
	if s.kubeDNS == "" {
		if _, err := os.Stat(defaultKubeDNSDir); err == nil {
			s.kubeDNS = defaultKubeDNSDir
		}
	}
	return s
}

// errNoFile says that there is no Corefile (yet).
var errNoFile = errors.New("no Corefile")

// read finds the Corefile.
func (s *source) read() (name, text string, err error) {
	for _, name := range []string{s.base, s.conf} {
		if name == "" {
			continue
		}
		b, err := os.ReadFile(name)
		switch {
		case err == nil:
			return name, string(b), nil
		case !errors.Is(err, fs.ErrNotExist):
			return name, "", fmt.Errorf("reading the Corefile: %w", err)
		}
	}
	if s.builtIn {
		return "built-in Corefile", corefile.Reference(), nil
	}
	return "", "", fmt.Errorf("%w: neither %s (-basecorefile) nor %s (-conf) exists", errNoFile, s.base, s.conf)
}

// load reads and checks everything.
func (s *source) load() (*corefile.Config, error) {
	name, text, err := s.read()
	if err != nil {
		return nil, err
	}
	opts := s.opts
	opts.KubeDNS = s.readKubeDNS()
	cfg, err := corefile.Parse(name, text, opts)
	if err != nil {
		return nil, err
	}
	for _, w := range cfg.Warnings {
		s.once(w.Error(), "said", func() { s.log.Warn("configuration", "note", w.Error()) })
	}
	return cfg, nil
}

// wait loads, and tries again for a bounded time while there is no Corefile: in a Pod the volume may fill a moment later.
func (s *source) wait(ctx context.Context, most time.Duration) (*corefile.Config, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("not within %v (-wait)", most))
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for said := false; ; {
		cfg, err := s.load()
		if !errors.Is(err, errNoFile) {
			return cfg, err
		}
		if !said {
			said = true
			s.log.Warn("waiting for a Corefile", "error", err, "most", most)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, %w", err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// readKubeDNS reads the mounted ConfigMap kube-dns. What is wrong with it never stops the Corefile: bad entries are left
// out, and while a value is no JSON the last good version stays.
func (s *source) readKubeDNS() corefile.KubeDNS {
	if s.kubeDNS == "" {
		return corefile.KubeDNS{}
	}
	if _, err := os.Stat(s.kubeDNS); err != nil {
		s.once("directory", err.Error(), func() { s.log.Warn("no ConfigMap kube-dns: no stub domains, no upstream servers", "error", err) })
	} else {
		s.forget("directory")
	}
	var values [2]string
	for i, key := range []string{"stubDomains", "upstreamNameservers"} {
		b, err := os.ReadFile(filepath.Join(s.kubeDNS, key))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.setupError(key, fmt.Errorf("reading the ConfigMap kube-dns: %w", err))
			return s.lastKube
		}
		values[i] = string(b)
	}
	k, problems, err := corefile.ParseKubeDNS(s.kubeDNS, values[0], values[1])
	if err != nil {
		s.setupError("kube-dns", fmt.Errorf("%w; the last good version stays in force", err))
		return s.lastKube
	}
	s.forget("kube-dns")
	var all []string
	for _, p := range problems {
		all = append(all, p.Error())
	}
	if len(all) > 0 {
		s.setupError("entries", errors.New(strings.Join(all, "; ")))
	} else {
		s.forget("entries")
	}
	s.lastKube = k
	return k
}

// setupError logs and counts an error when it is new; files are looked at again and again.
func (s *source) setupError(key string, err error) {
	s.once(key, err.Error(), func() {
		s.log.Error("ConfigMap kube-dns", "error", err)
		s.metrics.ConfigMapFailed()
	})
}

func (s *source) once(key, text string, do func()) {
	if s.noted[key] != text {
		s.noted[key] = text
		do()
	}
}

// complaints are what is wrong with the ConfigMap kube-dns as last read; nil: nothing.
func (s *source) complaints() error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(s.noted)) {
		errs = append(errs, errors.New(s.noted[key]))
	}
	return errors.Join(errs...)
}

func (s *source) forget(key string) { delete(s.noted, key) }
