package resolve

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// LogRecord is what the log directive may say about a query. Query and Reply are the
// packed messages; they are only valid during the call.
type LogRecord struct {
	Origin wire.Origin
	Name   string // as asked for, in lower case, odd octets escaped
	Type   string
	Class  string
	DO     bool
	Rcode  wire.Rcode
	Took   time.Duration
	Query  []byte
	Reply  []byte
}

func (z *Zone) logQuery(q *wire.Query, from wire.Origin, reply []byte, took time.Duration) {
	z.cfg.QueryLog(LogRecord{
		Origin: from,
		Name:   wire.FormatName(q.Name()),
		Type:   wire.TypeString(q.Type),
		Class:  wire.ClassString(q.Class),
		DO:     q.DO(),
		Rcode:  wire.ReplyRcode(reply),
		Took:   took,
		Query:  q.Packet(),
		Reply:  reply,
	})
}

// noteFailure writes the record of the errors directive.
func (z *Zone) noteFailure(question []byte, err error) {
	log, missed := z.errorLog.next(time.Now())
	if log == nil {
		return
	}
	n := len(question) - 4
	log.Warn("query failed",
		slog.String("name", wire.FormatName(question[:n])),
		slog.String("type", wire.TypeString(uint16(question[n])<<8|uint16(question[n+1]))),
		slog.Any("error", err),
		slog.Int("unlogged", missed),
	)
}

// limitedLog lets ten records a second through: an upstream that is away must not fill
// the disk of the node.
type limitedLog struct {
	log    *slog.Logger
	mu     sync.Mutex
	since  time.Time
	n      int
	missed int
}

const logsPerSecond = 10

// next returns the log to write one record to, or nil, and how many were left out before.
func (l *limitedLog) next(now time.Time) (log *slog.Logger, missed int) {
	if l.log == nil {
		return nil, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= time.Second {
		l.since, l.n = now, 0
	}
	if l.n >= logsPerSecond {
		l.missed++
		return nil, 0
	}
	l.n++
	missed, l.missed = l.missed, 0
	return l.log, missed
}
