package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// gap is how long a watch may be away before that counts: each ends every few minutes by rule and is opened again within
// two seconds.
const gap = 5 * time.Second

// streams knows which of the watches that keep the picture are open. It stands between client-go and the network: a
// reflector hides a watch that cannot be opened behind its own retries, and an API server that answers other requests
// says nothing about watches, to which the right may be gone, or which something on the way may cut.
type streams struct {
	mu    sync.Mutex
	known map[string]*stream // by the end of the request's path
}

type stream struct {
	open int
	last time.Time // the last byte, or when it was opened
}

// expect says that there is to be a watch of what is at path, which may follow a prefix of the API server's.
func (s *streams) expect(path string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[string]*stream{}
	}
	s.known[path] = &stream{last: time.Now()}
}

// wrap makes the round tripper that notes watches.
func (s *streams) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil && response.StatusCode == http.StatusOK && r.URL.Query().Get("watch") == "true" {
			response.Body = s.opened(r.URL.Path, response.Body)
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip is http.RoundTripper's.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (s *streams) opened(path string, body io.ReadCloser) io.ReadCloser {
	s.mu.Lock()
	defer s.mu.Unlock()
	for end, watch := range s.known {
		if strings.HasSuffix(path, end) {
			watch.open++
			watch.last = time.Now()
			return &streamBody{ReadCloser: body, streams: s, watch: watch}
		}
	}
	return body
}

// broken says in words which watches are not open, and since when nothing has come from any of them; empty if all are.
func (s *streams) broken(now time.Time) (why string, since time.Time) {
	if s == nil {
		return "", time.Time{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var paths []string
	for path, watch := range s.known {
		if watch.open > 0 || now.Sub(watch.last) < gap {
			continue
		}
		paths = append(paths, path)
		if since.IsZero() || watch.last.Before(since) {
			since = watch.last
		}
	}
	if len(paths) == 0 {
		return "", time.Time{}
	}
	slices.Sort(paths)
	return fmt.Sprintf("%d of %d watches are broken: %s", len(paths), len(s.known), strings.Join(paths, " ")), since
}

// streamBody notes the bytes and the end of a watch. A stream whose other end is silently gone ends too: client-go
// pings the connection.
type streamBody struct {
	io.ReadCloser
	streams *streams
	watch   *stream
	end     sync.Once
}

// Read is io.Reader's.
func (b *streamBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.streams.mu.Lock()
	defer b.streams.mu.Unlock()
	if n > 0 {
		b.watch.last = time.Now()
	}
	if err != nil {
		b.endLocked()
	}
	return n, err
}

// Close is io.Closer's.
func (b *streamBody) Close() error {
	b.streams.mu.Lock()
	b.endLocked()
	b.streams.mu.Unlock()
	return b.ReadCloser.Close()
}

func (b *streamBody) endLocked() { b.end.Do(func() { b.watch.open-- }) }
