package bed

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// A relay passes TCP connections from one network namespace to another: it accepts in the one and dials in the other.
// TLS passes through untouched, so both ends see each other's certificates.
type relay struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

type listenFunc func(ctx context.Context, network, address string) (net.Listener, error)

// listenHost listens in the network namespace of this process.
func listenHost(ctx context.Context, network, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, network, address)
}

// newRelay starts a relay on a free port of the loopback.
func newRelay(ctx context.Context, listen listenFunc, dial func(context.Context) (net.Conn, error)) (*relay, error) {
	l, err := listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for a relay: %w", err)
	}
	r := &relay{listener: l, dial: dial}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.wg.Go(r.accept)
	return r, nil
}

func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.wg.Go(func() { r.serve(c) })
	}
}

func (r *relay) serve(in net.Conn) {
	defer in.Close()
	out, err := r.dial(r.ctx)
	if err != nil {
		return // the caller sees a closed connection, as if nobody listened
	}
	defer out.Close()
	// Whoever is still copying when the relay closes is woken by closing both ends.
	defer context.AfterFunc(r.ctx, func() { in.Close(); out.Close() })()
	done := make(chan struct{}, 2)
	pass := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src) // either end may close at any time
		if c, ok := dst.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
		done <- struct{}{}
	}
	go pass(out, in)
	go pass(in, out)
	<-done
	<-done
}

// close ends the relay and all its connections.
func (r *relay) close() {
	r.cancel()
	r.listener.Close()
	r.wg.Wait()
}
