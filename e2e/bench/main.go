// Command bench measures nodedns beside its peers and beside the floor, a
// responder that does nothing but receive, flip bits and send.
//
// Everything runs in a network namespace of its own. The server under test has
// the first core to itself, load and upstream share the second. Each round
// measures every server once, in rotated order; every figure printed is the
// median of the rounds, with the least and the greatest beside it.
//
// Usage: go run ./e2e/bench [-rounds 5] [-time 4s] [-servers floor,nodedns,…]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	switch arg := firstArg(); arg {
	case "floor":
		err = runFloor(os.Args[2])
	case "upstream":
		err = runUpstream(os.Args[2])
	default:
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func firstArg() string {
	if len(os.Args) == 3 {
		return os.Args[1]
	}
	return ""
}

// options are what the command line says.
type options struct {
	Rounds   int           // rounds over all servers; each figure is their median
	Time     time.Duration // length of one load run
	Servers  []string      // rows, in the order of the table
	Bin      string        // nodedns-cache; empty: built from this tree
	Programs string        // folder of the programs built for the bench
	JSON     string        // where the figures go
}

func run() error {
	var o options
	flag.IntVar(&o.Rounds, "rounds", 5, "rounds over all servers")
	flag.DurationVar(&o.Time, "time", 4*time.Second, "length of one load run")
	servers := flag.String("servers", "floor,nodedns,coredns,unbound,dnsmasq,dnsdist,nodedns-cut", "rows to measure")
	flag.StringVar(&o.Bin, "bin", "", "nodedns-cache to measure (default: built from this tree)")
	flag.StringVar(&o.JSON, "json", "_out/bench.json", "file for the figures")
	flag.Parse()
	o.Servers = strings.Split(*servers, ",")
	if o.Rounds < 1 {
		return errors.New("-rounds must be at least 1")
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	if !inNamespace() {
		// Building needs the network, so it comes before the namespace.
		if err := prepare(ctx, &o); err != nil {
			return err
		}
		return reexec(ctx, o)
	}
	return measure(ctx, o)
}
