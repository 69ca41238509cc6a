// Command bed-client runs in the client Pods of the test bed. Its verbs:
//
//	bed-client load -server 10.96.0.10 -name a.test -rate 100   questions at a fixed rate, until standard input ends; JSON
//	bed-client lookup NAME...                                   the addresses by Go's own resolver
//
// Without -server, load asks the first nameserver of /etc/resolv.conf, as a stub resolver does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/nodedns/nodedns/e2e/load"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "bed-client: no verb: load or lookup")
		os.Exit(2)
	}
	var err error
	switch verb, args := os.Args[1], os.Args[2:]; verb {
	case "load":
		err = runLoad(args)
	case "lookup":
		err = lookup(args)
	default:
		err = fmt.Errorf("no verb %q: load or lookup", verb)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bed-client:", err)
		os.Exit(1)
	}
}

func runLoad(args []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	server := flags.String("server", "", "address to ask (default: the first nameserver of /etc/resolv.conf)")
	network := flags.String("network", "udp", "udp or tcp")
	names := flags.String("name", "kubernetes.default.svc.cluster.local", "names to ask in turn, separated by commas")
	rate := flags.Int("rate", 100, "questions a second")
	deadline := flags.Duration("deadline", time.Second, "how long a question waits")
	limit := flags.Duration("limit", time.Minute, "longest run")
	answers := flags.Bool("answers", false, "print every single question too")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *server == "" {
		first, err := firstNameserver("/etc/resolv.conf")
		if err != nil {
			return err
		}
		*server = first
	}
	ip, err := netip.ParseAddr(*server)
	if err != nil {
		return fmt.Errorf("reading -server: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // whatever ends the input ends the load
		cancel()
	}()
	r, err := load.Run(ctx, load.Config{
		Server: netip.AddrPortFrom(ip, 53), Network: *network, Names: strings.Split(*names, ","),
		Rate: *rate, Deadline: *deadline, Limit: *limit,
	})
	if err != nil {
		return err
	}
	if !*answers {
		r.Answers = nil
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func firstNameserver(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("looking for a nameserver: %w", err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if fields := strings.Fields(s.Text()); len(fields) > 1 && fields[0] == "nameserver" {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("no nameserver in %s", file)
}

func lookup(names []string) error {
	failed := false
	for _, n := range names {
		ips, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip4", n)
		if err != nil {
			fmt.Printf("%s error: %v\n", n, err)
			failed = true
			continue
		}
		fmt.Print(n)
		for _, ip := range ips {
			fmt.Print(" ", ip)
		}
		fmt.Println()
	}
	if failed {
		return fmt.Errorf("not every name had an address")
	}
	return nil
}
