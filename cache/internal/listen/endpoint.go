package listen

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// heartbeat is how often an idle worker turns its loop.
const heartbeat = 500 * time.Millisecond

// quiet is how long a draining socket must have been silent to count as dry.
const quiet = 200 * time.Millisecond

// Endpoint is one address and port, bound over UDP and TCP.
type Endpoint struct {
	cfg     Config
	addr    netip.AddrPort
	current atomic.Pointer[generation]
	log     *slog.Logger
	metrics *Metrics

	udp      []*udpWorker
	listener *net.TCPListener
	born     time.Time
	turned   atomic.Int64   // last turn of the accept loop, since born
	failures acceptFailures // of the accept loop
	pool     *pool
	conns    *connSet
	turns    *turns       // of the connections
	messages sync.Pool    // of *message
	queued   atomic.Int64 // octets of TCP replies that clients have yet to take

	running sync.Mutex
	closed  bool // guarded by running
}

// Listen binds cfg.Addr over UDP and TCP, or neither. Until Run is called the kernel
// queues what arrives. An Endpoint that is not run must be closed.
func Listen(cfg Config, h Handler, log *slog.Logger, m *Metrics) (*Endpoint, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("listening on %s: %w", cfg.Addr, err)
	}
	cfg = cfg.withDefaults()
	udp, tcp, err := bind(cfg)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{cfg: cfg, log: log, metrics: m, listener: tcp, born: time.Now()}
	if e.turns, err = newTurns(max(1, runtime.GOMAXPROCS(0)/2)); err != nil {
		closeAll(udp, tcp)
		return nil, fmt.Errorf("listening on %s: %w", cfg.Addr, err)
	}
	local := udp[0].LocalAddr().(*net.UDPAddr).AddrPort()
	e.addr = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	e.conns = newConnSet(cfg.MaxConns, cfg.MaxConnsPerClient)
	e.messages.New = func() any { return new(message) }
	e.pool = newPool(e)
	e.current.Store(newGeneration(h))
	for i, c := range udp {
		w, err := newUDPWorker(e, c, uint8(i))
		if err != nil {
			closeAll(udp, tcp)
			e.turns.close()
			return nil, fmt.Errorf("listening on %s over udp: %w", cfg.Addr, err)
		}
		e.udp = append(e.udp, w)
	}
	return e, nil
}

// Addr is the bound address and port.
func (e *Endpoint) Addr() netip.AddrPort { return e.addr }

// Progress returns when the slowest worker last turned its loop, which even an idle one
// does every half second; a worker that hangs in its handler does not.
func (e *Endpoint) Progress() time.Time {
	oldest := e.turned.Load()
	for _, w := range e.udp {
		oldest = min(oldest, w.turned.Load())
	}
	return e.born.Add(time.Duration(oldest))
}

// Close unbinds an Endpoint that is not running; after Run it does nothing.
func (e *Endpoint) Close() error {
	e.running.Lock()
	defer e.running.Unlock()
	e.closeSockets()
	return nil
}

func (e *Endpoint) closeSockets() {
	if e.closed {
		return
	}
	e.closed = true
	for _, w := range e.udp {
		w.conn.Close()
	}
	e.listener.Close()
	e.turns.close()
}

// Run serves until ctx ends. Then it drains: it goes on answering until its sockets have
// been silent for a moment, at most Config.Drain, lets the questions under way end and
// closes the sockets. It returns an error if a socket could not be served any more, nil
// otherwise.
func (e *Endpoint) Run(ctx context.Context) error {
	e.running.Lock()
	defer e.running.Unlock()
	if e.closed {
		return net.ErrClosed
	}

	// Questions under way outlive ctx, but not the drain.
	resolving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	e.pool.ctx = resolving

	drain := make(chan struct{}) // closed when draining begins
	over := make(chan struct{})  // closed when it has to be over
	failed := make(chan error, len(e.udp)+1)
	var loops, trimmer sync.WaitGroup
	for _, w := range e.udp {
		loops.Go(func() { failed <- w.run(drain, over) })
	}
	loops.Go(func() { failed <- e.accept(drain, over) })
	trimmer.Go(func() { e.pool.trim(drain) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed: // one socket failed: the others drain as if ctx had ended
	}
	e.log.Debug("draining", "address", e.addr, "bound", e.cfg.Drain)
	close(drain)
	e.wakeLoops()
	e.conns.drain()
	bound := time.AfterFunc(e.cfg.Drain, func() {
		close(over)
		cancel()
		e.conns.closeAll()
	})
	loops.Wait()
	e.conns.wait()
	e.pool.wait()
	bound.Stop()
	trimmer.Wait()
	e.pool.stop()
	e.closeSockets()
	for range len(e.udp) + 1 {
		if len(failed) == 0 {
			break
		}
		err = cmp.Or(err, <-failed)
	}
	return err
}

// wakeLoops ends the waits of all loops, which then see that draining has begun.
func (e *Endpoint) wakeLoops() {
	e.wakeWorkers()
	_ = e.listener.SetDeadline(time.Unix(1, 0))
}

// wakeWorkers ends the waits of the UDP loops.
func (e *Endpoint) wakeWorkers() {
	for _, w := range e.udp {
		_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// panicked counts and tells a panic of the handler.
func (e *Endpoint) panicked(reason any) {
	e.metrics.panics.Inc()
	e.log.Error("panic while handling a query", "address", e.addr, "panic", reason, "stack", string(debug.Stack()))
}
