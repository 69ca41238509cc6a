package certs

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"
)

// parseBundle gives the certificates of a PEM bundle; what is no certificate is passed over.
func parseBundle(bundle []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		block, rest := pem.Decode(bundle)
		if block == nil {
			return out
		}
		bundle = rest
		if block.Type != "CERTIFICATE" {
			continue
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, cert)
		}
	}
}

// formatBundle is the PEM text of the certificates, the newest first, each once: the same set is always the same text.
func formatBundle(certs []*x509.Certificate) []byte {
	sorted := slices.Clone(certs)
	slices.SortFunc(sorted, func(a, b *x509.Certificate) int {
		return cmp.Or(b.NotBefore.Compare(a.NotBefore), bytes.Compare(a.Raw, b.Raw))
	})
	sorted = slices.CompactFunc(sorted, (*x509.Certificate).Equal)
	var out bytes.Buffer
	for _, cert := range sorted {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
	return out.Bytes()
}

// wantBundle is what the caBundle should be: the authorities that are needed here, and of those in the bundle the ones
// with our name that another replica may still serve under.
//
// A superseded authority signs nothing after the newest one began, so whatever it signed has expired one leaf's life
// later; linger is that life and some slack. No memory of when it was superseded is needed, which a restart would lose.
func wantBundle(bundle []byte, commonName string, needed []*x509.Certificate, linger time.Duration, now time.Time) []byte {
	want := slices.Clone(needed)
	var newest time.Time
	for _, cert := range needed {
		if cert.NotBefore.After(newest) {
			newest = cert.NotBefore
		}
	}
	for _, cert := range parseBundle(bundle) {
		ours := cert.IsCA && cert.Subject.CommonName == commonName
		if ours && now.Before(cert.NotAfter) && (cert.NotBefore.After(newest) || now.Before(newest.Add(linger))) {
			want = append(want, cert)
		}
	}
	return formatBundle(want)
}

// contains tells whether the bundle has the certificate.
func contains(bundle []byte, cert *x509.Certificate) bool {
	return slices.ContainsFunc(parseBundle(bundle), cert.Equal)
}
