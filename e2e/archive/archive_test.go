package archive_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodedns/nodedns/e2e/archive"
)

// read returns the files of a tar archive by name; of a link, its target.
func read(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	out := make(map[string][]byte)
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeSymlink {
			text = []byte("→ " + h.Linkname)
		}
		out[h.Name] = text
	}
}

type index struct {
	Manifests []struct {
		Digest      string
		Annotations map[string]string
	}
}

type manifest struct {
	Config, Layers json.RawMessage
}

type descriptor struct{ MediaType, Digest string }

// An archive is what containerd imports: an OCI layout that names its image, one uncompressed layer with the files, and
// a configuration with the entrypoint. Written twice it is the same, byte for byte.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!"), 0o755); err != nil {
		t.Fatal(err)
	}
	image := archive.Image{
		Name: "docker.io/x/y:1", Entrypoint: []string{"/a/program"}, Files: map[string]string{"a/program": program},
		Links: map[string]string{"bin": "a"}, Texts: map[string]string{"etc/passwd": "root"},
	}
	var twice [2][]byte
	for i := range twice {
		file := filepath.Join(dir, image.File())
		if err := archive.Write(file, image); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		twice[i] = b
	}
	if !bytes.Equal(twice[0], twice[1]) {
		t.Error("the same files give another archive")
	}
	files := read(t, bytes.NewReader(twice[0]))
	var idx index
	decode(t, files["index.json"], &idx)
	if len(idx.Manifests) != 1 || idx.Manifests[0].Annotations["io.containerd.image.name"] != image.Name {
		t.Fatalf("index %s", files["index.json"])
	}
	blob := func(digest string) []byte { return files["blobs/sha256/"+digest[len("sha256:"):]] }
	var m manifest
	decode(t, blob(idx.Manifests[0].Digest), &m)
	var config descriptor
	var layers []descriptor
	decode(t, m.Config, &config)
	decode(t, m.Layers, &layers)
	if len(layers) != 1 || layers[0].MediaType != "application/vnd.oci.image.layer.v1.tar" {
		t.Fatalf("layers %s", m.Layers)
	}
	var cfg struct{ Config struct{ Entrypoint []string } }
	decode(t, blob(config.Digest), &cfg)
	if diff := cmp.Diff(image.Entrypoint, cfg.Config.Entrypoint); diff != "" {
		t.Errorf("entrypoint (-want +got):\n%s", diff)
	}
	layer := read(t, bytes.NewReader(blob(layers[0].Digest)))
	for name, want := range map[string]string{"a/program": "#!", "bin": "→ a", "etc/passwd": "root", "tmp/": "", "run/": ""} {
		if got, there := layer[name]; !there || string(got) != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func decode(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
