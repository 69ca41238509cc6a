package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// row is one server's line of bench.json: each figure the median of the rounds.
type row struct {
	Server         string  `json:"server"`
	HitUS          float64 `json:"hit_us"`
	HitQPS         float64 `json:"hit_qps"`
	MissUS         float64 `json:"miss_us"`
	MissQPS        float64 `json:"miss_qps"`
	P50US          float64 `json:"p50_us"`
	P99US          float64 `json:"p99_us"`
	RSSMiB         float64 `json:"rss_mib"`
	Lost           float64 `json:"lost"`
	SearchUpstream float64 `json:"search_upstream"`
}

// figure names a column and where its value stands in a sample.
type figure struct {
	title  string
	format string
	of     func(*sample) float64
	set    func(*row, float64)
}

func figures() []figure {
	return []figure{
		{"hit µs", "%.1f", func(s *sample) float64 { return s.HitUS }, func(r *row, v float64) { r.HitUS = v }},
		{"hit q/s", "%.0f", func(s *sample) float64 { return s.HitQPS }, func(r *row, v float64) { r.HitQPS = v }},
		{"miss µs", "%.1f", func(s *sample) float64 { return s.MissUS }, func(r *row, v float64) { r.MissUS = v }},
		{"miss q/s", "%.0f", func(s *sample) float64 { return s.MissQPS }, func(r *row, v float64) { r.MissQPS = v }},
		{"p50 µs", "%.0f", func(s *sample) float64 { return s.P50US }, func(r *row, v float64) { r.P50US = v }},
		{"p99 µs", "%.0f", func(s *sample) float64 { return s.P99US }, func(r *row, v float64) { r.P99US = v }},
		{"RSS MiB", "%.1f", func(s *sample) float64 { return s.RSSMiB }, func(r *row, v float64) { r.RSSMiB = v }},
		{"lost", "%.0f", func(s *sample) float64 { return s.Lost }, func(r *row, v float64) { r.Lost = v }},
		{"search upstream", "%.0f", func(s *sample) float64 { return s.SearchUpstream }, func(r *row, v float64) { r.SearchUpstream = v }},
	}
}

// report prints the table of medians with least and greatest, and writes the JSON file.
func report(o options, samples map[string][]sample) error {
	var rows []row
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\nserver")
	for _, f := range figures() {
		fmt.Fprintf(w, "\t%s", f.title)
	}
	fmt.Fprintln(w)
	for _, name := range o.Servers {
		r := row{Server: name}
		fmt.Fprint(w, name)
		for _, f := range figures() {
			var vs []float64
			for i := range samples[name] {
				vs = append(vs, f.of(&samples[name][i]))
			}
			slices.Sort(vs)
			median := (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
			f.set(&r, math.Round(median*100)/100)
			if vs[0] == vs[len(vs)-1] {
				fmt.Fprintf(w, "\t"+f.format, median)
			} else {
				fmt.Fprintf(w, "\t"+f.format+" ("+f.format+"–"+f.format+")", median, vs[0], vs[len(vs)-1])
			}
		}
		fmt.Fprintln(w)
		rows = append(rows, r)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(map[string]any{
		"rows": rows, "commit": commit(), "cpu": cpuModel(), "rounds": o.Rounds,
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.JSON), 0o755); err != nil {
		return err
	}
	fmt.Println("\nwritten to", o.JSON)
	return os.WriteFile(o.JSON, append(text, '\n'), 0o644)
}

func commit() string {
	out, err := exec.CommandContext(context.Background(), "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	_, rest, _ := strings.Cut(string(b), "model name")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), ":"))
}
