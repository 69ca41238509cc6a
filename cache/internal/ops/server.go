package ops

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// server is one listener with what answers on it.
type server struct {
	site *site
	http *http.Server
	done chan struct{}
}

func (s *Servers) serve(ctx context.Context, addr string, w *site) (*server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // the address stands beside it already
		}
		return nil, err
	}
	r := &server{site: w, done: make(chan struct{}), http: &http.Server{
		Handler:           w,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      2 * time.Minute, // a CPU profile takes 30 s by default
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}}
	go func() {
		defer close(r.done)
		if err := r.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("web server ended", "address", addr, "error", err)
		}
	}()
	return r, nil
}

// close ends a server, giving answers under way a moment.
func (r *server) close(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.http.Shutdown(ctx); err != nil {
		if err := r.http.Close(); err != nil {
			log.Debug("closing web server", "error", err)
		}
	}
	<-r.done
}
