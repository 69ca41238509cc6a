package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pairPEM makes a certificate and its key; serial tells it from others.
func pairPEM(t *testing.T, serial int64, notAfter time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "hook"}, DNSNames: []string{"hook"},
		NotBefore: notAfter.Add(-time.Hour), NotAfter: notAfter}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed(template, template, private.Public(), private).Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// mount is a folder as kubelet mounts a Secret into a Pod.
type mount struct {
	t       *testing.T
	folder  string
	version int
}

func newMount(t *testing.T) *mount { return &mount{t: t, folder: t.TempDir()} }

// swap writes a new version the way kubelet's atomic writer does.
func (m *mount) swap(cert, key []byte) {
	m.t.Helper()
	m.version++
	dated := "..2026_" + string(rune('a'+m.version))
	check := func(err error) {
		m.t.Helper()
		if err != nil {
			m.t.Fatal(err)
		}
	}
	check(os.Mkdir(filepath.Join(m.folder, dated), 0o700))
	write(m.t, filepath.Join(m.folder, dated, "tls.crt"), cert)
	write(m.t, filepath.Join(m.folder, dated, "tls.key"), key)
	old, _ := os.Readlink(filepath.Join(m.folder, "..data"))
	check(os.Symlink(dated, filepath.Join(m.folder, "..data_tmp")))
	check(os.Rename(filepath.Join(m.folder, "..data_tmp"), filepath.Join(m.folder, "..data")))
	if old == "" {
		check(os.Symlink("..data/tls.crt", filepath.Join(m.folder, "tls.crt")))
		check(os.Symlink("..data/tls.key", filepath.Join(m.folder, "tls.key")))
	} else {
		check(os.RemoveAll(filepath.Join(m.folder, old)))
	}
}

func runFiles(t *testing.T, cfg FilesConfig) *Files {
	t.Helper()
	f, err := NewFiles(cfg, discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return f
}

func serial(f *Files) int64 {
	pair, err := f.GetCertificate(nil)
	if err != nil {
		return 0
	}
	return pair.Leaf.SerialNumber.Int64()
}

// serves waits until the certificate with that serial number is served.
func serves(t *testing.T, f *Files, want int64) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for serial(f) != want {
		select {
		case <-deadline:
			t.Fatalf("serial %d is served after 10 s, want %d", serial(f), want)
		case <-ticker.C:
		}
	}
}

// W05: whatever way the files change, the new pair is served soon, and the old one as long as there is no good new one.
func TestW05CertificateFilesAreNeverLostFromSight(t *testing.T) {
	valid := time.Now().Add(time.Hour)
	for name, poll := range map[string]time.Duration{"by watch": time.Hour, "by poll": 5 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Run("swapped links", func(t *testing.T) {
				m := newMount(t)
				m.swap(pairPEM(t, 1, valid))
				f := runFiles(t, FilesConfig{CertFile: filepath.Join(m.folder, "tls.crt"), KeyFile: filepath.Join(m.folder, "tls.key"), Poll: poll})
				serves(t, f, 1)
				for i := range int64(3) {
					m.swap(pairPEM(t, i+2, valid))
					serves(t, f, i+2)
				}
			})
			t.Run("deleted and written again, one after the other", func(t *testing.T) {
				folder := t.TempDir()
				certFile, keyFile := filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
				f := runFiles(t, FilesConfig{CertFile: certFile, KeyFile: keyFile, Poll: poll})
				if f.Ready() == nil {
					t.Error("ready without a certificate")
				}
				cert, key := pairPEM(t, 1, valid)
				write(t, certFile, cert)
				write(t, keyFile, key)
				serves(t, f, 1)
				for _, file := range []string{certFile, keyFile} {
					if err := os.Remove(file); err != nil {
						t.Fatal(err)
					}
				}
				cert, key = pairPEM(t, 2, valid)
				write(t, certFile, cert)
				if got := serial(f); got != 1 {
					t.Errorf("serial %d is served while the key is missing", got)
				}
				write(t, keyFile, key)
				serves(t, f, 2)
			})
			t.Run("folder made anew", func(t *testing.T) {
				if name == "by watch" {
					return // the watch ends with the folder: that is what the poll is for
				}
				folder := filepath.Join(t.TempDir(), "certs")
				f := runFiles(t, FilesConfig{CertFile: filepath.Join(folder, "tls.crt"), KeyFile: filepath.Join(folder, "tls.key"), Poll: poll})
				for i := range int64(3) {
					if err := os.RemoveAll(folder); err != nil {
						t.Fatal(err)
					}
					if err := os.Mkdir(folder, 0o700); err != nil {
						t.Fatal(err)
					}
					cert, key := pairPEM(t, i+1, valid)
					write(t, filepath.Join(folder, "tls.crt"), cert)
					write(t, filepath.Join(folder, "tls.key"), key)
					serves(t, f, i+1)
				}
			})
		})
	}
}

// W05: what is worse than the pair being served is not taken up.
func TestW05WorsePairsAreRefused(t *testing.T) {
	folder := t.TempDir()
	f, err := NewFiles(FilesConfig{CertFile: filepath.Join(folder, "tls.crt"), KeyFile: filepath.Join(folder, "tls.key")}, discard())
	if err != nil {
		t.Fatal(err)
	}
	valid := time.Now().Add(time.Hour)
	cert, key := pairPEM(t, 1, valid)
	put := func(cert, key []byte) {
		write(t, f.cfg.CertFile, cert)
		write(t, f.cfg.KeyFile, key)
		f.read()
	}
	put(cert, key)
	if f.Ready() != nil || !f.Expiry().Equal(valid.UTC().Truncate(time.Second)) {
		t.Fatalf("ready %v, expiry %s", f.Ready(), f.Expiry())
	}
	expiredCert, expiredKey := pairPEM(t, 2, time.Now().Add(-time.Minute))
	otherCert, otherKey := pairPEM(t, 3, valid)
	earlyCert, earlyKey := pairPEM(t, 4, time.Now().Add(2*time.Hour)) // valid in an hour
	for name, pair := range map[string][2][]byte{
		"expired":     {expiredCert, expiredKey},
		"too early":   {earlyCert, earlyKey},
		"mismatched":  {otherCert, key},
		"mismatched2": {cert, otherKey},
		"garbage":     {[]byte("garbage"), key},
		"empty":       {nil, nil},
	} {
		put(pair[0], pair[1])
		if got := serial(f); got != 1 {
			t.Errorf("%s: serial %d is served", name, got)
		}
	}
	put(otherCert, otherKey)
	if got := serial(f); got != 3 {
		t.Errorf("a good pair was not taken up: %d", got)
	}
	// An expired pair is better than none: whether it will do is the caller's business.
	fresh, err := NewFiles(f.cfg, discard())
	if err != nil {
		t.Fatal(err)
	}
	write(t, f.cfg.CertFile, expiredCert)
	write(t, f.cfg.KeyFile, expiredKey)
	fresh.read()
	if serial(fresh) != 2 || fresh.Ready() == nil {
		t.Errorf("expired only: serial %d, ready %v", serial(fresh), fresh.Ready())
	}
}

func TestFilesConfigValidate(t *testing.T) {
	for _, bad := range []FilesConfig{{}, {CertFile: "x"}, {CertFile: "x", KeyFile: "y", Poll: -1}} {
		if _, err := NewFiles(bad, discard()); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
