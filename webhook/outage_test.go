package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// watched asks for path through s and gives the status and the body, which stays open.
func watched(t *testing.T, s *streams, url string) (int, io.ReadCloser) {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: s.wrap(transport)}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Body
}

func TestStreamsKnowWhichWatchesAreOpen(t *testing.T) {
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("forbidden") != "" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, "event")
		w.(http.Flusher).Flush()
		if r.URL.Query().Get("watch") == "true" {
			<-end
		}
	}))
	defer server.Close()
	s := &streams{}
	s.expect("/api/v1/nodes")
	s.expect("/api/v1/namespaces")
	later := func() (string, time.Time) { return s.broken(time.Now().Add(time.Hour)) }

	if why, _ := s.broken(time.Now()); why != "" {
		t.Errorf("at the start: %s", why)
	}
	if why, _ := later(); why != "2 of 2 watches are broken: /api/v1/namespaces /api/v1/nodes" {
		t.Errorf("never opened: %q", why)
	}
	_, nodes := watched(t, s, server.URL+"/prefix/api/v1/nodes?watch=true")
	defer nodes.Close()
	_, spaces := watched(t, s, server.URL+"/api/v1/namespaces?watch=true")
	if why, _ := later(); why != "" {
		t.Errorf("both open: %q", why)
	}
	if err := spaces.Close(); err != nil {
		t.Error(err)
	}
	_ = spaces.Close() // again, as some do
	before := time.Now()
	for _, other := range []string{"/api/v1/namespaces", "/api/v1/namespaces?watch=true&forbidden=1", "/api/v1/pods?watch=true", "/api/v1/namespaces/x/pods"} {
		status, body := watched(t, s, server.URL+other)
		if why, since := later(); why != "1 of 2 watches are broken: /api/v1/namespaces" || since.After(before) {
			t.Errorf("after %s (status %d): %q since %s", other, status, why, since)
		}
		body.Close()
	}
	if _, err := io.ReadFull(nodes, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	read := time.Now()
	close(end)
	if _, err := nodes.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v", err)
	}
	if why, since := s.broken(time.Now().Add(time.Hour)); !strings.HasPrefix(why, "2 of 2") || since.After(read) {
		t.Errorf("after the server has ended the watch: %q since %s", why, since)
	}
}

// An outage is told of once, whatever it follows from, and its end.
func TestOutageIsToldOfOnce(t *testing.T) {
	var log bytes.Buffer
	var told []string
	p := newIdlePicture(t)
	p.log = slog.New(slog.NewTextHandler(&log, nil))
	p.streams = &streams{}
	p.told = func(o *outage) { told = append(told, o.condition()) }
	now := time.Now()

	p.judge(nil, now)
	if p.stale() != 0 || p.outage.Load().condition() != "StateCurrent=True" || log.Len() > 0 {
		t.Errorf("at the start: %s, log %s", p.stale(), log.String())
	}
	p.judge(&outage{since: now.Add(-time.Minute), why: "no answer"}, now)
	p.streams.expect("/api/v1/nodes")
	p.judge(nil, now.Add(time.Minute)) // it answers, but a watch is broken
	if age := p.stale(); age < time.Minute || age > 2*time.Minute {
		t.Errorf("age %s", age)
	}
	if text := p.outage.Load().condition(); !strings.HasPrefix(text, "StateCurrent=False since=") || !strings.Contains(text, "/api/v1/nodes") {
		t.Errorf("condition %q", text)
	}
	p.streams = nil
	p.judge(nil, now.Add(2*time.Minute))
	if p.stale() != 0 || len(told) != 2 || told[1] != "StateCurrent=True" {
		t.Errorf("at the end: age %s, told %q", p.stale(), told)
	}
	if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "after=3m") {
		t.Errorf("log:\n%s", log.String())
	}
}
