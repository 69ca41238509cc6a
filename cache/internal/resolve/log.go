package resolve

import (
	"log/slog"
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
	log := z.cfg.ErrorLog
	if log == nil || !log.Enabled(z.ctx, slog.LevelWarn) {
		return
	}
	n := len(question) - 4
	log.Warn("query failed",
		slog.String("name", wire.FormatName(question[:n])),
		slog.String("type", wire.TypeString(uint16(question[n])<<8|uint16(question[n+1]))),
		slog.Any("error", err),
	)
}
