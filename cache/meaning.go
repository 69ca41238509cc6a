package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/nodedns/nodedns/cache/internal/corefile"
)

// meaning is all that decides what build makes of cfg: its text, the addresses that its interfaces have now and the contents
// of its TLS files, which are rotated under the same names.
func (b *builder) meaning(cfg *corefile.Config) string {
	var out strings.Builder
	out.WriteString(cfg.String())
	places, err := b.places(cfg)
	for _, at := range places {
		fmt.Fprintln(&out, "#", slices.SortedFunc(maps.Keys(at), netip.AddrPort.Compare))
	}
	if err != nil {
		fmt.Fprintln(&out, "#", err) // build will say the same
	}
	for _, block := range cfg.Blocks {
		for _, f := range block.Forward {
			fmt.Fprintln(&out, "#", tlsDigest(f.TLS))
		}
	}
	return out.String()
}

// tlsDigest stands for the contents of the files of t; for one that cannot be read its error does.
func tlsDigest(t *corefile.TLS) string {
	if t == nil {
		return ""
	}
	h := sha256.New()
	for _, name := range []string{t.CA, t.Cert, t.Key} {
		if name == "" {
			continue
		}
		text, err := os.ReadFile(name)
		fmt.Fprintf(h, "%d %v\n%s", len(text), err, text)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}
