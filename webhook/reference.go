package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodedns/nodedns/webhook/internal/admit"
)

// runReference prints the flags and the metrics as Markdown tables.
func runReference(stdout, stderr io.Writer) int {
	fmt.Fprintln(stdout, "| Flag | Default | Meaning |\n|---|---|---|")
	flagSet(&options{}, stderr).VisitAll(func(f *flag.Flag) {
		_, usage := flag.UnquoteUsage(f)
		value := ""
		if f.DefValue != "" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(stdout, "| `-%s` | %s | %s |\n", f.Name, value, strings.ReplaceAll(usage, "|", "\\|"))
	})
	fmt.Fprintln(stdout, "\n| Metric | Meaning |\n|---|---|")
	for _, m := range ownMetrics() {
		fmt.Fprintf(stdout, "| `%s` | %s |\n", m.name, m.help)
	}
	return 0
}

type metric struct{ name, help string }

// descriptions is a Registerer that only reads what it is given.
type descriptions struct{ metrics []metric }

func (d *descriptions) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() { c.Describe(ch); close(ch) }()
	for desc := range ch {
		// Desc has no accessors; its text is Desc{fqName: "…", help: "…", …}.
		var m metric
		if _, err := fmt.Sscanf(desc.String(), "Desc{fqName: %q, help: %q,", &m.name, &m.help); err != nil {
			return fmt.Errorf("reading %s: %w", desc, err)
		}
		if strings.HasPrefix(m.name, "nodedns_") {
			d.metrics = append(d.metrics, m)
		}
	}
	return nil
}

func (d *descriptions) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

func (d *descriptions) Unregister(prometheus.Collector) bool { return false }

// ownMetrics lists what /metrics has beside the Go runtime's and the process's own.
func ownMetrics() []metric {
	var d descriptions
	admit.NewMetrics(&d)
	registerState(&d, nil, nil)
	return d.metrics
}
