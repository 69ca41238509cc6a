package archive

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

// BuildProduct builds both programs of this project and writes their images into _out/images of the repository.
func BuildProduct(ctx context.Context, con *console.Console) (files []string, err error) {
	err = host.Install(ctx, con, host.Package{Name: "iptables", Why: "the cache's image carries both flavours of it"})
	if err != nil {
		return nil, err
	}
	bin, err := parts.Build(ctx, con, parts.Product())
	if err != nil {
		return nil, err
	}
	cache, err := Cache(bin)
	if err != nil {
		return nil, err
	}
	return write(filepath.Dir(bin), "images", cache, Webhook(bin))
}

// BuildBed builds what runs in Pods of the test bed and writes its images into _out/bed-images of the repository.
func BuildBed(ctx context.Context, con *console.Console) (files []string, err error) {
	err = host.Install(ctx, con, host.Package{Name: "busybox-static", Why: "the tools inside the client image"})
	if err != nil {
		return nil, err
	}
	bin, err := parts.Build(ctx, con, parts.Workloads())
	if err != nil {
		return nil, err
	}
	client, err := Client(ctx, con, bin)
	if err != nil {
		return nil, err
	}
	return write(filepath.Dir(bin), "bed-images", Pause(), DNS(bin), client)
}

func write(out, folder string, images ...Image) (files []string, err error) {
	dir := filepath.Join(out, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder for images: %w", err)
	}
	for _, i := range images {
		file := filepath.Join(dir, i.File())
		if err := Write(file, i); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}
