package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"
)

// newLeaf makes a key and has the authority sign a certificate for it. The key never leaves the process.
func newLeaf(authority Authority, cfg SelfManagedConfig) (*leaf, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	cert, err := authority.Sign(&x509.Certificate{
		PublicKeyAlgorithm: x509.ECDSA,
		PublicKey:          key.Public(),
		DNSNames:           cfg.DNSNames,
		IPAddresses:        cfg.IPs,
		KeyUsage:           x509.KeyUsageDigitalSignature,
		ExtKeyUsage:        []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("signing the serving certificate: %w", err)
	}
	return &leaf{pair: &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}}, nil
}

// agesAt is when two thirds of the certificate's life are over. It is compared with the wall clock each time, so that a
// clock that was set, or a machine that slept, does not leave a timer behind.
func agesAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 3 * 2)
}
