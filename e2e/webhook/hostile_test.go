package webhook_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodedns/nodedns/e2e/bed"
)

// podLimit is the memory limit of the manifest.
const podLimit = 160 << 20

// Whoever reaches the webhook's port, which is every Pod of most clusters, can open connections, send nothing, half of
// something, garbage or as much as there is: the API server's calls go on, and the memory stays within the Pod's limit.
func hostileClients(t *testing.T, c *cluster) {
	hook := c.webhook("hook-a", 8443, "-cert-overlap=1s").await()
	c.untilInjected("shop")
	before := c.failOpen()
	tr := c.traffic("shop", 50*time.Millisecond)

	big := fmt.Sprintf(`{"request":{"uid":"u1","namespace":"shop","operation":"CREATE","object":{"metadata":{},"spec":{"x":%q}}}}`, strings.Repeat("x", 3<<20))
	header := func(length int) string {
		return fmt.Sprintf("POST /mutate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", length)
	}
	var attackers sync.WaitGroup
	for i, attack := range []struct {
		what  string
		port  int    // from the first
		alpn  string // empty: no TLS
		sends string
	}{
		{"nothing", 0, "", ""},
		{"half a handshake", 0, "", "\x16\x03\x01\x02"},
		{"HTTP without TLS", 0, "", "GET / HTTP/1.1\r\n\r\n"},
		{"half a header", 0, "http/1.1", "POST /mutate HTTP/1.1\r\nHost: x\r\nX: "},
		{"a header without end", 0, "http/1.1", "POST /mutate HTTP/1.1\r\nX: " + strings.Repeat("x", 1<<20)},
		{"half a body", 0, "http/1.1", header(len(big)) + big[:len(big)/2]},
		{"large reviews", 0, "http/1.1", header(len(big)) + big},
		{"half a header for the metrics", 1, "", "GET /metrics HTTP/1.1\r\nHost: x\r\nX: "},
		{"half a header for the probes", 2, "", "GET /readyz HTTP/1.1\r\nHost: x\r\nX: "},
		{"garbage for HTTP/2", 0, "h2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 4096)},
	} {
		for range 40 {
			attackers.Go(func() { c.attack(t, hook.port+attack.port, byte(10+i), attack.what, attack.alpn, attack.sends) })
		}
	}
	attackers.Wait()
	tr.wantClean(t, before)

	if peak := resident(t, hook.process.Pid(), "VmHWM"); peak > podLimit {
		t.Errorf("resident at most %.1f MiB, the Pod's limit is %d MiB", float64(peak)/(1<<20), podLimit>>20)
	} else {
		t.Logf("resident at most %.1f MiB", float64(peak)/(1<<20))
	}
	if n := hook.metric("nodedns_webhook_refused_connections_total"); n < 8*(40-32) {
		t.Errorf("only %v connections were refused", n)
	}
	if n := hook.metric("nodedns_webhook_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
}

// attack opens a connection from a source of its own and wants the other end to close it.
func (c *cluster) attack(t *testing.T, port int, source byte, what, alpn, sends string) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var conn net.Conn
	err := c.cp.Namespace().In(func() (err error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, source)}}
		conn, err = d.DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", bed.ControlPlaneIP, port))
		return err
	})
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	defer conn.Close()
	if alpn != "" {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpn}}) // it attacks, it need not trust
	}
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	_, _ = io.WriteString(conn, sends) // it may be closed on the way
	answer, err := io.ReadAll(conn)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Errorf("%s: the connection is still open after 10 s, answered %.100q", what, answer)
	}
}
