package house

import (
	"fmt"
	"io"
	"net"
	"time"
)

// Page fetches a page over HTTP from the calling goroutine's network namespace, which an http.Client would leave. It gives
// status line, headers and body, or the error in words.
func Page(addr, path string) string {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
	b, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
