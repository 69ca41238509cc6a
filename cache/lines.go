package main

import (
	"bytes"
	"io"
	"time"
)

const (
	maxLines = 4096     // that wait to be written
	maxChunk = 64 << 10 // octets, of lines that are written together
)

// lineQueue stands between those who log and a stream that may not take it: a pipe that nobody reads blocks who writes, and
// that must not be who answers a question or renews the lease. What does not fit in is dropped.
type lineQueue struct {
	out     io.Writer
	lines   chan []byte
	dropped func()
	closing chan struct{}
	done    chan struct{}
}

// newLineQueue returns a queue to out; dropped is called for each line that is left out. The queue must be closed.
func newLineQueue(out io.Writer, dropped func()) *lineQueue {
	q := &lineQueue{out: out, lines: make(chan []byte, maxLines), dropped: dropped, closing: make(chan struct{}), done: make(chan struct{})}
	go q.run()
	return q
}

// Write queues p, one line or more, and never fails or waits.
func (q *lineQueue) Write(p []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(p):
	default:
		q.dropped()
	}
	return len(p), nil
}

// close writes what is queued, for so long at most.
func (q *lineQueue) close(most time.Duration) {
	close(q.closing)
	bound := time.NewTimer(most)
	defer bound.Stop()
	select {
	case <-q.done:
	case <-bound.C:
	}
}

func (q *lineQueue) run() {
	defer close(q.done)
	var chunk []byte
	for {
		select {
		case line := <-q.lines:
			chunk = append(chunk[:0], line...)
		case <-q.closing:
			if chunk = q.gather(chunk[:0]); len(chunk) > 0 {
				_, _ = q.out.Write(chunk)
				continue
			}
			return
		}
		chunk = q.gather(chunk)
		_, _ = q.out.Write(chunk) // there is no other place to say that the log cannot be written
	}
}

// gather adds the lines that are waiting.
func (q *lineQueue) gather(chunk []byte) []byte {
	for len(chunk) < maxChunk {
		select {
		case line := <-q.lines:
			chunk = append(chunk, line...)
		default:
			return chunk
		}
	}
	return chunk
}
