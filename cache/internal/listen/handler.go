package listen

import (
	"context"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

// Handler answers queries. It is called from many goroutines at once.
type Handler interface {
	// Hit answers query from memory, without blocking and, for a plain query,
	// without allocating. The reply may use buf[:0], whose capacity is at least
	// 4096 for UDP and 65535 for TCP; it has been used when the next call with the
	// same buf begins. ok is false if the question needs Resolve. An empty reply
	// with ok set means that silence is the answer.
	Hit(buf, query []byte, from wire.Origin) (reply []byte, ok bool)

	// Resolve answers query and blocks until it has an answer, its own deadline
	// has passed or ctx has ended; it always has an answer, SERVFAIL at worst,
	// unless silence is right. The reply may use buf[:0], whose capacity is 4096: a
	// larger one is appended to it all the same. query does not change before
	// Resolve has returned.
	Resolve(ctx context.Context, buf, query []byte, from wire.Origin) []byte
}

const (
	// headerLen is the least a DNS message can be; anything shorter has no ID to
	// answer to.
	headerLen = 12

	// maxMessage is the largest message that TCP framing can hold (RFC 1035
	// section 4.2.2).
	maxMessage = 1<<16 - 1

	// udpQuery is the largest query taken over UDP. A question with all of EDNS is
	// below 512 octets unless it carries padding, which stays below 1232.
	udpQuery = 2048

	// tcpQuery is the largest query taken over TCP, where there is no reason for a
	// larger one either; what announces more is no question.
	tcpQuery = 4096

	// udpReply is the room for a reply over UDP, and for that of a question being
	// resolved: many of them wait for an upstream at a time.
	udpReply = 4096
)

// message is room for a message of any size.
type message [maxMessage]byte
