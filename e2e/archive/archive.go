// Package archive writes container images as OCI archives, without docker and without a registry.
//
// It owns the contents of the images of this project (the cache, the webhook) and of the test bed (cluster DNS, client,
// pause). All are one uncompressed layer of files from this machine: the programs that were built, and for the cache the
// iptables tools of both flavours from Debian's packages. The same files give the same archive, byte for byte.
//
//	files, err := archive.Product(bin)
//	err = archive.Write("_out/images/cache.tar", files[0])
package archive

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// An Image is what goes into one archive.
type Image struct {
	// Name is the full name with tag, such as docker.io/nodedns/cache:dev.
	Name string
	// Entrypoint is the program and its first arguments.
	Entrypoint []string
	// Files are paths in the image (without the leading slash) and the files on this machine that go there.
	Files map[string]string
	// Links are symbolic links in the image.
	Links map[string]string
	// Texts are small files given as text.
	Texts map[string]string
	// Folders are empty folders, such as mount points on a read-only root.
	Folders []string
}

// File is the name of the image's archive: the last part of its name.
func (i Image) File() string {
	name, _, _ := strings.Cut(path.Base(i.Name), ":")
	return name + ".tar"
}

// Write writes the image's archive. A half-written archive never has the final name.
func Write(file string, i Image) error {
	content, err := i.layer()
	if err != nil {
		return fmt.Errorf("collecting the files of %s: %w", i.Name, err)
	}
	img, err := i.image(content)
	if err != nil {
		return fmt.Errorf("making the image %s: %w", i.Name, err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(file), ".layout-")
	if err != nil {
		return fmt.Errorf("making the image %s: %w", i.Name, err)
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("writing the layout of %s: %w", i.Name, err)
	}
	names := map[string]string{"io.containerd.image.name": i.Name, "org.opencontainers.image.ref.name": i.Name}
	if err := l.AppendImage(img, layout.WithAnnotations(names)); err != nil {
		return fmt.Errorf("writing the layout of %s: %w", i.Name, err)
	}
	return pack(file, dir)
}

func (i Image) image(content []byte) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, static.NewLayer(content, types.OCIUncompressedLayer))
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", runtime.GOARCH
	cfg.Config = v1.Config{Entrypoint: i.Entrypoint, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}
	return mutate.ConfigFile(img, cfg)
}

// layer writes the files in the order of their names and without times, so that the same files give the same bytes.
func (i Image) layer() ([]byte, error) {
	var out bytes.Buffer
	w := &layerWriter{tar: tar.NewWriter(&out), made: make(map[string]bool)}
	for _, to := range slices.Sorted(maps.Keys(i.Files)) {
		if err := w.file(to, i.Files[to]); err != nil {
			return nil, err
		}
	}
	for _, to := range slices.Sorted(maps.Keys(i.Texts)) {
		if err := w.text(to, []byte(i.Texts[to]), 0o644); err != nil {
			return nil, err
		}
	}
	for _, to := range slices.Sorted(maps.Keys(i.Links)) {
		if err := w.link(to, i.Links[to]); err != nil {
			return nil, err
		}
	}
	for _, d := range append([]string{"tmp", "run", "etc"}, i.Folders...) {
		if err := w.folders(d + "/x"); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.tar.Close()
}

type layerWriter struct {
	tar  *tar.Writer
	made map[string]bool
}

func (w *layerWriter) file(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	return w.text(to, text, int64(info.Mode().Perm()))
}

func (w *layerWriter) text(to string, text []byte, mode int64) error {
	if err := w.folders(to); err != nil {
		return err
	}
	if err := w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: mode, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := w.tar.Write(text)
	return err
}

func (w *layerWriter) link(to, target string) error {
	if err := w.folders(to); err != nil {
		return err
	}
	return w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: to, Linkname: target, Mode: 0o777})
}

// folders writes the folders above a path, outermost first.
func (w *layerWriter) folders(to string) error {
	dir := path.Dir(to)
	if dir == "." || w.made[dir] {
		return nil
	}
	if err := w.folders(dir); err != nil {
		return err
	}
	w.made[dir] = true
	mode := int64(0o755)
	if dir == "tmp" {
		mode = 0o1777
	}
	return w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: mode})
}

// pack makes a tar archive of a folder.
func pack(file, dir string) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".archive-")
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	w := &layerWriter{tar: tar.NewWriter(f), made: make(map[string]bool)}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return w.text(name, text, 0o644)
	})
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := w.tar.Close(); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := f.Chmod(0o644); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}
