package listen

import (
	"errors"
	"os"
	"time"
)

// queue puts a reply in line for the writer; an empty one is silence.
func (c *conn) queue(reply []byte) {
	if len(reply) == 0 {
		return
	}
	size := int64(2 + len(reply))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return
	}
	if c.ep.queued.Add(size) > maxQueued && c.unsent+int(size) > fairShare {
		c.ep.queued.Add(-size)
		c.breakLocked(closeSlowWrite)
		return
	}
	c.unsent += int(size)
	c.out = append(c.out, byte(len(reply)>>8), byte(len(reply)))
	c.out = append(c.out, reply...)
}

// flush sends what is in line, unless another goroutine is at it.
func (c *conn) flush() {
	c.mu.Lock()
	mine := len(c.out) > 0 && !c.writing
	if mine {
		c.writing = true
	}
	c.mu.Unlock()
	if mine {
		c.write()
	}
}

// write sends what is in line until nothing is. The caller has set writing.
func (c *conn) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) > 0 && !c.broken {
		buf := c.out
		c.out, c.spare = c.spare[:0], nil
		c.mu.Unlock()

		_ = c.tcp.SetWriteDeadline(time.Now().Add(c.ep.cfg.WriteTimeout))
		_, err := c.tcp.Write(buf)
		c.ep.queued.Add(-int64(len(buf)))

		c.mu.Lock()
		c.unsent -= len(buf)
		if cap(buf) <= fairShare {
			c.spare = buf[:0]
		}
		if err != nil {
			reason := closeBroken
			if errors.Is(err, os.ErrDeadlineExceeded) {
				reason = closeSlowWrite
			}
			c.breakLocked(reason)
		}
		c.changed.Broadcast()
	}
	if cap(c.out) > fairShare {
		c.out = nil // a connection may lie idle for long
	}
	c.writing = false
	c.idle = time.Now()
	c.changed.Broadcast()
}

// breakLocked ends the connection at once: a client that has lost one reply cannot make
// sense of what follows.
func (c *conn) breakLocked(reason closing) {
	if c.broken {
		return
	}
	c.broken = true
	c.ep.metrics.closed[reason].Inc()
	c.ep.queued.Add(-int64(len(c.out)))
	c.unsent -= len(c.out)
	c.out = nil
	c.tcp.Close()
	c.changed.Broadcast()
}
