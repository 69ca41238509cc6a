package forward

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t, "dns.test")
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		t.Fatal(err)
	}
	up := newFake(t, answer, noUDP, noTCP)
	up.addr = netip.MustParseAddrPort(l.Addr().String())
	up.listener = l
	up.wg.Go(func() { up.serveTCP(l) })

	for _, tc := range []struct {
		name   string
		cfg    Config
		target Target
		ok     bool
	}{
		{"name of the config", Config{ServerName: "dns.test"}, Target{}, true},
		{"name of the target", Config{ServerName: "other.test"}, Target{ServerName: "dns.test"}, true},
		{"address", Config{}, Target{}, true},
		{"wrong name", Config{ServerName: "other.test"}, Target{}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.target.Addr, tc.target.TLS = up.addr, true
			tc.cfg.Targets = []Target{tc.target}
			tc.cfg.TLS = &tls.Config{RootCAs: pool}
			f := start(t, tc.cfg)
			if !tc.ok {
				var verify *tls.CertificateVerificationError
				if _, err := f.ask(t, "a.test"); !errors.As(err, &verify) {
					t.Errorf("error %v", err)
				}
				return
			}
			for i := range 3 {
				f.mustAsk(t, fmt.Sprintf("n%d.test", i), 1, 2*time.Second)
			}
			if n := f.value(t, "coredns_proxy_conn_cache_hits_total", "proto", "tcp-tls"); n != 2 {
				t.Errorf("%v queries over the open connection, want 2", n)
			}
		})
	}
}

func selfSigned(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		DNSNames:     []string{name},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
