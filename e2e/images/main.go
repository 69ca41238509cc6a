// Command images builds both programs of this project and writes their container images as OCI archives into
// _out/images, without docker. Load them with one of:
//
//	ctr -n k8s.io images import _out/images/cache.tar
//	skopeo copy oci-archive:_out/images/cache.tar docker://registry.example/nodedns/cache:dev
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/archive"
	"github.com/nodedns/nodedns/e2e/console"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	con := console.New(os.Stdout)
	files, err := archive.BuildProduct(ctx, con)
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	for _, f := range files {
		con.Step("wrote %s", f)
	}
}
