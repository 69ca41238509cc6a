// Package certs gives a webhook its serving certificate and keeps the API server's trust in it, in one of two ways:
//
//   - SelfManaged: an authority of our own, kept in a Secret by cert-manager's library, whose certificates it puts into
//     the caBundle of the webhook configuration;
//   - Files: a certificate that somebody else keeps as files, cert-manager proper as a rule, whose CA injector keeps
//     the caBundle.
//
// It owns certificates, keys and the caBundle; it knows nothing of what is served. Keys are never logged. A usage:
//
//	var source certs.Source = certs.NewFiles(certs.FilesConfig{…}, logger)
//	go source.Run(ctx)
//	server.TLSConfig = &tls.Config{GetCertificate: source.GetCertificate}
package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"time"
)

// ErrNoCertificate says that there is none yet.
var ErrNoCertificate = errors.New("no serving certificate yet")

// Source is where a serving certificate comes from. All methods but Run may be called at any time, by anyone.
type Source interface {
	// Run keeps the certificate until ctx ends. It is called once; a failure that time may heal is retried inside.
	Run(ctx context.Context) error
	// GetCertificate gives the certificate to serve at this moment, ErrNoCertificate before the first. It never blocks.
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Ready is nil when a caller that trusts what it should will accept the certificate.
	Ready() error
	// Expiry is the end of the certificate being served, zero if there is none.
	Expiry() time.Time
}

var (
	_ Source = (*Files)(nil)
	_ Source = (*SelfManaged)(nil)
)
