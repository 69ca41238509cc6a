package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// certificate makes one for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestRotatedTLSFiles: a CA file that is changed under its name takes effect with the next reload, though the Corefile is
// the same.
func TestRotatedTLSFiles(t *testing.T) {
	pair, good := certificate(t)
	_, other := certificate(t)
	up := &upstreamServer{ip: "192.0.2.7", asked: make(map[string]int)}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{Listener: l, Handler: up}
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	done := make(chan error, 1)
	go func() { done <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = s.Shutdown(); <-done })

	ca := filepath.Join(t.TempDir(), "ca.pem")
	write(t, ca, string(other))
	c := start(t, block(".", "tls://"+l.Addr().String()+" {\n tls "+ca+"\n }"))
	if got := c.ask("a.test"); got != "SERVFAIL" {
		t.Errorf("with the wrong CA: %s", got)
	}
	write(t, ca, string(good))
	c.reload()
	if got := c.ask("b.test"); got != "192.0.2.7" {
		t.Errorf("with the right CA: %s", got)
	}
}

// TestMeaning: what needs a reload, and what does not.
func TestMeaning(t *testing.T) {
	b := testBuilder()
	b.interfaces = func(string) ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil }
	ca := filepath.Join(t.TempDir(), "ca.pem")
	cfg := parsed(t, ". {\nbind eth0\nforward . tls://192.0.2.53 {\ntls "+ca+"\n}\n}")
	last := b.meaning(cfg)
	if b.meaning(cfg) != last {
		t.Error("nothing has changed")
	}
	for what, change := range map[string]func(){
		"a file came":    func() { write(t, ca, "one") },
		"a file changed": func() { write(t, ca, "two") },
		"an address came": func() {
			b.interfaces = func(string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}, nil
			}
		},
	} {
		change()
		now := b.meaning(cfg)
		if now == last {
			t.Errorf("%s: the same meaning", what)
		}
		last = now
	}
}
