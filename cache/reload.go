package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/nodedns/nodedns/cache/internal/corefile"
	"github.com/nodedns/nodedns/cache/internal/ops"
)

// reloader puts changes of the files in force.
type reloader struct {
	log     *slog.Logger
	metrics *ops.ProcessMetrics
	source  *source
	builder *builder
	server  *server
	web     *web
	level   *slog.LevelVar
	base    slog.Level // of -log-level
	always  bool       // watch also when no block has reload
	failed  string     // the last failure, so that it is told once
}

// load brings the first configuration to life.
func (r *reloader) load(cfg *corefile.Config) error {
	next, err := r.builder.build(cfg, nil)
	if err != nil {
		return err
	}
	if err := r.server.apply(next); err != nil {
		next.discard(nil)
		return err
	}
	r.inForce(next, false)
	return nil
}

// inForce makes the rest of the process follow the configuration that now serves.
func (r *reloader) inForce(next *running, reload bool) {
	debug := false
	for _, b := range next.cfg.Blocks {
		debug = debug || b.Debug
	}
	r.level.Set(r.base)
	if debug {
		r.level.Set(min(r.base, slog.LevelDebug))
	}
	r.web.set(next.cfg)
	sum := sha256.Sum256([]byte(next.text))
	r.metrics.Loaded(hex.EncodeToString(sum[:]), reload)
}

// reload loads everything and, if it means something else than what serves, switches to it. Until the new side is complete
// nothing changes; if it cannot be completed, nothing ever does. level is for the news that there is none.
func (r *reloader) reload(level slog.Level) {
	cfg, err := r.source.load()
	if err != nil {
		r.fail(err)
		return
	}
	old := r.server.current
	if r.builder.meaning(cfg) == old.meaning {
		r.log.Log(context.Background(), level, "configuration unchanged")
		r.succeed()
		return
	}
	next, err := r.builder.build(cfg, old)
	if err != nil {
		r.fail(err)
		return
	}
	if err := r.server.apply(next); err != nil {
		next.discard(old)
		r.fail(err)
		return
	}
	r.inForce(next, true)
	r.succeed()
	r.log.Info("configuration reloaded", "blocks", len(cfg.Blocks))
}

// fail tells of a configuration that cannot be loaded, once for each one.
func (r *reloader) fail(err error) {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if text == r.failed {
		return
	}
	r.failed = text
	r.web.lastFail.Store(&text)
	r.metrics.ReloadFailed()
	r.log.Error("reload failed, the old configuration stays in force", "error", text)
}

func (r *reloader) succeed() {
	r.failed = ""
	r.web.lastFail.Store(nil)
}

// watch looks at the files until ctx ends, as often as the reload directive says, and when a signal comes.
func (r *reloader) watch(ctx context.Context, signals <-chan os.Signal) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Stop()
		if every := r.interval(); every > 0 {
			timer.Reset(every)
		}
		select {
		case <-ctx.Done():
			return
		case s := <-signals:
			r.log.Info("reload asked for", "signal", s.String())
			r.failed = "" // whoever asks wants to hear of the failure, also a second time
			r.reload(slog.LevelInfo)
		case <-timer.C:
			r.reload(slog.LevelDebug)
		}
	}
}

// defaultInterval is how often files are looked at with -reloadwithsignal and no reload directive; the incumbent's.
const defaultInterval = 10 * time.Second

// interval is the least interval of all reload directives, spread by its jitter so that the nodes of a cluster do not all
// reload at once. 0 means never.
func (r *reloader) interval() time.Duration {
	var least *corefile.Reload
	for _, b := range r.server.current.cfg.Blocks {
		if b.Reload != nil && (least == nil || b.Reload.Interval < least.Interval) {
			least = b.Reload
		}
	}
	switch {
	case least == nil && r.always:
		return defaultInterval
	case least == nil:
		return 0
	case least.Jitter == 0:
		return least.Interval
	}
	return least.Interval - least.Jitter/2 + rand.N(least.Jitter)
}
