package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// FilesConfig of a Files source.
type FilesConfig struct {
	// CertFile and KeyFile are PEM files; in a mounted Secret they are links, and are replaced by a swap of links.
	CertFile, KeyFile string
	// Poll is how often the files are read whether or not a change was seen. Zero: 5 s.
	Poll time.Duration
}

// Validate lists every problem of c.
func (c FilesConfig) Validate() error {
	var errs []error
	if c.CertFile == "" || c.KeyFile == "" {
		errs = append(errs, errors.New("a certificate file and a key file are needed"))
	}
	if c.Poll < 0 {
		errs = append(errs, fmt.Errorf("poll interval %s: want a positive duration", c.Poll))
	}
	return errors.Join(errs...)
}

// Files serves what lies in two files, and goes on serving the last good pair while they are missing or do not match.
type Files struct {
	cfg     FilesConfig
	log     *slog.Logger
	current atomic.Pointer[tls.Certificate]
	problem string // the last one logged, so that each is logged once
}

// NewFiles makes a source of files; they need not be there yet.
func NewFiles(cfg FilesConfig, log *slog.Logger) (*Files, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Poll == 0 {
		cfg.Poll = 5 * time.Second
	}
	return &Files{cfg: cfg, log: log}, nil
}

// Run reads the files whenever something happens in their folders, and every Poll besides: a watch on a file follows
// the inode, which a swap of links replaces, and a watch on a folder misses what happened before it was set.
func (f *Files) Run(ctx context.Context) error {
	folders := []string{filepath.Dir(f.cfg.CertFile), filepath.Dir(f.cfg.KeyFile)}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		// Too many watches on the node, say. Polling is enough.
		f.log.Warn("files are polled only", "error", err)
		watcher = &fsnotify.Watcher{}
	} else {
		defer func() { _ = watcher.Close() }() // nothing is lost with it
	}
	ticker := time.NewTicker(f.cfg.Poll)
	defer ticker.Stop()
	for {
		if watcher.Events != nil {
			for _, folder := range slices.Compact(folders) {
				// Adding again is free, and takes up a folder that was deleted and made anew.
				if err := watcher.Add(folder); err != nil {
					f.log.Debug("folder is not watched", "folder", folder, "error", err)
				}
			}
		}
		f.read()
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
		case err := <-watcher.Errors:
			f.log.Debug("watching files", "error", err)
		case <-ticker.C:
		}
	}
}

// read takes up the pair in the files if it is better than the one being served.
func (f *Files) read() {
	pair, err := f.load()
	if err != nil {
		if f.problem != err.Error() {
			f.problem = err.Error()
			f.log.Warn("certificate files are not usable, going on with what there is", "error", err)
		}
		return
	}
	f.problem = ""
	old := f.current.Load()
	if old != nil && slices.EqualFunc(old.Certificate, pair.Certificate, slices.Equal) {
		return
	}
	f.current.Store(pair)
	f.log.Info("serving certificate taken up", "not_after", pair.Leaf.NotAfter, "dns_names", pair.Leaf.DNSNames)
}

func (f *Files) load() (*tls.Certificate, error) {
	cert, err := os.ReadFile(f.cfg.CertFile)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate: %w", err)
	}
	key, err := os.ReadFile(f.cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("matching certificate and key: %w", err)
	}
	if pair.Leaf == nil { // with GODEBUG x509keypairleaf=0
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("parsing the certificate: %w", err)
		}
	}
	if old := f.current.Load(); old != nil && time.Now().Before(old.Leaf.NotAfter) {
		switch {
		case time.Now().After(pair.Leaf.NotAfter):
			return nil, fmt.Errorf("the certificate in the file expired at %s", pair.Leaf.NotAfter)
		case time.Now().Before(pair.Leaf.NotBefore): // by a clock that is ahead of ours
			return nil, fmt.Errorf("the certificate in the file is not valid before %s", pair.Leaf.NotBefore)
		}
	}
	return &pair, nil
}

// GetCertificate gives the certificate to serve.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := f.current.Load(); pair != nil {
		return pair, nil
	}
	return nil, ErrNoCertificate
}

// Ready is nil as soon as there is a certificate that has not expired.
func (f *Files) Ready() error {
	pair := f.current.Load()
	switch {
	case pair == nil:
		return ErrNoCertificate
	case time.Now().After(pair.Leaf.NotAfter):
		return fmt.Errorf("the serving certificate expired at %s", pair.Leaf.NotAfter)
	}
	return nil
}

// Expiry is the end of the certificate being served.
func (f *Files) Expiry() time.Time {
	if pair := f.current.Load(); pair != nil {
		return pair.Leaf.NotAfter
	}
	return time.Time{}
}
