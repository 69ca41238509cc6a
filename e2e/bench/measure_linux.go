package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Workloads. The cache of the reference Corefile holds 9,984 answers of either kind.
const (
	hitNames    = 1000
	cacheNames  = 9984
	missNames   = 60000
	latencyRate = 20000 // questions a second
	searchNames = 1000  // outside names asked through a search list of three
)

// sample is what one round says of one server. Microseconds, MiB, questions.
type sample struct {
	HitUS, HitQPS   float64
	MissUS, MissQPS float64
	P50US, P99US    float64
	RSSMiB          float64
	Lost            float64
	SearchUpstream  float64 // questions that reached cluster DNS for searchNames outside names
}

func measure(ctx context.Context, o options) error {
	if err := enter(&o); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/dev/shm", "nodedns-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	all := peers()
	samples := map[string][]sample{}
	for round := range o.Rounds {
		for i := range o.Servers {
			name := o.Servers[(i+round)%len(o.Servers)]
			p, ok := all[name]
			if !ok {
				return fmt.Errorf("no such server %q", name)
			}
			began := time.Now()
			s, err := measureOne(ctx, o, dir, round, name, p)
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, name, err)
			}
			samples[name] = append(samples[name], s)
			fmt.Printf("round %d/%d %-12s hit %5.1f µs  miss %5.1f µs  p99 %6.0f µs  (%.0f s)\n",
				round+1, o.Rounds, name, s.HitUS, s.MissUS, s.P99US, time.Since(began).Seconds())
		}
	}
	return report(o, samples)
}

// measureOne starts an upstream and a server afresh, so no round profits from another.
func measureOne(ctx context.Context, o options, dir string, round int, name string, p peer) (s sample, err error) {
	dir, err = os.MkdirTemp(dir, name+"-")
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	up, err := start(ctx, dir, loadCore, self(), "upstream", upstreamAddr)
	if err != nil {
		return s, err
	}
	defer up.stop()
	if err := up.awaitAnswer(upstreamAddr); err != nil {
		return s, err
	}
	argv, err := p.configure(dir, o)
	if err != nil {
		return s, err
	}
	srv, err := start(ctx, dir, serverCore, argv...)
	if err != nil {
		return s, err
	}
	defer srv.stop()
	if err := srv.awaitAnswer(serverAddr); err != nil {
		return s, err
	}
	l := &load{ctx: ctx, dir: dir, server: srv}
	l.seconds = strconv.FormatFloat(o.Time.Seconds(), 'f', -1, 64)

	if name != "floor" {
		if err := s.fillAndSearch(l, round); err != nil {
			return s, err
		}
	}
	if err := s.hits(l); err != nil {
		return s, err
	}
	if name != "floor" {
		if err := s.misses(l, round); err != nil {
			return s, err
		}
	}
	return s, nil
}

// fillAndSearch fills both caches and reads the memory, then counts what a
// search list costs cluster DNS.
func (s *sample) fillAndSearch(l *load, round int) error {
	full := l.file("full", func(w *bufio.Writer) {
		for i := range cacheNames {
			fmt.Fprintf(w, "full%d.bench.svc.cluster.local A\nnx%d.bench.svc.cluster.local A\n", i, i)
		}
	})
	for range 2 {
		if _, err := l.run(full, "-n", "1", "-q", "100"); err != nil {
			return err
		}
	}
	var err error
	if s.RSSMiB, err = l.server.rss(); err != nil {
		return err
	}

	before, err := ask(upstreamAddr, "count")
	if err != nil {
		return fmt.Errorf("counting at the upstream: %w", err)
	}
	search := l.file("search", func(w *bufio.Writer) {
		for _, list := range []string{"team-a.svc.cluster.local", "svc.cluster.local", "cluster.local"} {
			for i := range searchNames {
				fmt.Fprintf(w, "www%d-%d.com.%s A\n", round, i, list)
			}
		}
	})
	// A client asks one name after the other; so does this load.
	if _, err := l.run(search, "-n", "1", "-q", "1"); err != nil {
		return err
	}
	after, err := ask(upstreamAddr, "count")
	if err != nil {
		return fmt.Errorf("counting at the upstream: %w", err)
	}
	s.SearchUpstream = float64(binary.BigEndian.Uint32(after[:]) - binary.BigEndian.Uint32(before[:]))
	return nil
}

func (s *sample) hits(l *load) error {
	file := l.file("hits", func(w *bufio.Writer) {
		for i := range hitNames {
			fmt.Fprintf(w, "hit%d.bench.svc.cluster.local A\n", i)
		}
	})
	if _, err := l.run(file, "-n", "2", "-q", "50"); err != nil { // warm
		return err
	}
	r, err := l.run(file, "-l", l.seconds, "-c", "20", "-q", "200")
	if err != nil {
		return err
	}
	s.HitUS, s.HitQPS, s.Lost = r.cpuUS, r.qps, s.Lost+r.lost
	r, err = l.run(file, "-l", l.seconds, "-c", "20", "-q", "1000", "-Q", strconv.Itoa(latencyRate), "-v")
	if err != nil {
		return err
	}
	s.P50US, s.P99US, s.Lost = r.percentile(50), r.percentile(99), s.Lost+r.lost
	return nil
}

func (s *sample) misses(l *load, round int) error {
	file := l.file("misses", func(w *bufio.Writer) {
		for i := range missNames {
			fmt.Fprintf(w, "miss%d-%d.bench.svc.cluster.local A\n", round, i)
		}
	})
	r, err := l.run(file, "-n", "1", "-c", "20", "-q", "200")
	if err != nil {
		return err
	}
	s.MissUS, s.MissQPS, s.Lost = r.cpuUS, r.qps, s.Lost+r.lost
	return nil
}

// load runs dnsperf against one server.
type load struct {
	ctx     context.Context
	dir     string
	server  *process
	seconds string // of one run, as dnsperf takes it
}

// result of one dnsperf run.
type result struct {
	qps, lost float64
	cpuUS     float64   // CPU of the server per answer
	latencies []float64 // µs, sorted; with -v only
}

func (r result) percentile(p int) float64 {
	if len(r.latencies) == 0 {
		return 0
	}
	return r.latencies[min(len(r.latencies)-1, len(r.latencies)*p/100)]
}

func (l *load) file(name string, write func(*bufio.Writer)) string {
	path := filepath.Join(l.dir, name)
	f, err := os.Create(path)
	if err != nil {
		return path // dnsperf names the missing file
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	write(w)
	_ = w.Flush()
	return path
}

func (l *load) run(file string, args ...string) (r result, err error) {
	out, err := os.Create(filepath.Join(l.dir, "dnsperf"))
	if err != nil {
		return r, err
	}
	defer out.Close()
	cmd := exec.CommandContext(l.ctx, "dnsperf", append([]string{
		"-s", serverIP, "-p", serverPort, "-d", file, "-T", "1", "-t", "2", "-O", "suppress=timeout,congestion"}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	before, err := l.server.cpu()
	if err != nil {
		return r, fmt.Errorf("the server is gone: %w\n%s", err, l.server.output())
	}
	if err := onCore(loadCore, cmd.Start); err != nil {
		return r, fmt.Errorf("starting dnsperf: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return r, fmt.Errorf("dnsperf: %w", err)
	}
	after, err := l.server.cpu()
	if err != nil {
		return r, fmt.Errorf("the server is gone: %w\n%s", err, l.server.output())
	}
	completed, err := r.read(out.Name())
	if err != nil {
		return r, err
	}
	r.cpuUS = float64((after - before).Microseconds()) / completed
	return r, nil
}

// read takes the figures out of dnsperf's report; completed is how many
// questions were answered.
func (r *result) read(path string) (completed float64, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	number := func(pattern string) float64 {
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if m == nil {
			err = errors.Join(err, fmt.Errorf("dnsperf did not report %q", pattern))
			return 0
		}
		v, _ := strconv.ParseFloat(string(m[1]), 64)
		return v
	}
	completed = number(`Queries completed:\s+(\d+)`)
	r.lost = number(`Queries lost:\s+(\d+)`)
	r.qps = number(`Queries per second:\s+([\d.]+)`)
	for _, m := range regexp.MustCompile(`(?m)^> \S+ \S+ \S+ ([\d.]+)$`).FindAllSubmatch(text, -1) {
		v, _ := strconv.ParseFloat(string(m[1]), 64)
		r.latencies = append(r.latencies, v*1e6)
	}
	slices.Sort(r.latencies)
	if completed == 0 {
		err = errors.Join(err, fmt.Errorf("dnsperf had no answer:\n%s", text[:min(len(text), 1000)]))
	}
	return completed, err
}
