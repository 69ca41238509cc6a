// Package pki makes the keys and certificates of one test cluster: an authority that lives for a day, and what it signs.
//
// It owns no files; its callers write what they need into their run folder. Nothing here is meant to outlive a test.
//
//	ca, err := pki.NewAuthority("bed")
//	pair, err := ca.Issue(pki.Request{CommonName: "admin", Organization: "system:masters"})
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// lifetime is that of all certificates. They begin an hour ago, since the clocks of User-Mode Linux nodes may lag.
const lifetime = 24 * time.Hour

// A Pair is a certificate and its key, both PEM.
type Pair struct {
	Cert []byte
	Key  []byte
}

// An Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// A Request says what to certify. Every certificate is good for servers and clients.
type Request struct {
	CommonName   string
	Organization string
	DNSNames     []string
	IPs          []net.IP
}

// NewAuthority makes a self-signed authority.
func NewAuthority(name string) (*Authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template, err := template()
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: name}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the authority back: %w", err)
	}
	return &Authority{cert: cert, key: key, pem: certPEM(der)}, nil
}

// Cert is the authority's certificate, PEM.
func (a *Authority) Cert() []byte { return a.pem }

// Issue makes a key and signs a certificate for it.
func (a *Authority) Issue(r Request) (Pair, error) {
	key, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	template, err := template()
	if err != nil {
		return Pair{}, err
	}
	template.Subject = pkix.Name{CommonName: r.CommonName}
	if r.Organization != "" {
		template.Subject.Organization = []string{r.Organization}
	}
	template.DNSNames, template.IPAddresses = r.DNSNames, r.IPs
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("signing for %s: %w", r.CommonName, err)
	}
	text, err := keyPEM(key)
	return Pair{Cert: certPEM(der), Key: text}, err
}

// SigningKey makes a key for signing service account tokens, and its public half, both PEM.
func SigningKey() (private, public []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encoding a public key: %w", err)
	}
	private, err = keyPEM(key)
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}

func template() (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime)}, nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
