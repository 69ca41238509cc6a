// Package corefile turns the text of a Corefile into a checked configuration.
//
// It owns the syntax (blocks, snippets, import, environment variables, the placeholders of the incumbent), the meaning and
// the defaults of every directive, the settings of the kube-dns ConfigMap, and the canonical text of the result. It opens
// no socket and knows no other room: package main builds the running cache from what Parse returns.
//
//	cfg, err := corefile.Parse("Corefile", text, corefile.Options{LocalIPs: ips, ClusterDNS: dns})
//	if err != nil {
//		return err // every problem, one a line: file:line: directive: what is wrong, what is allowed
//	}
//	for _, b := range cfg.Blocks { … }
//	fmt.Print(cfg) // the same configuration as a Corefile without placeholders, variables and imports
package corefile
