package forward

import (
	"context"
	"time"
)

// healthTimeout bounds one health check.
const healthTimeout = time.Second

// startHealthCheck checks the upstream until it replies again, unless that is being done.
func (u *upstream) startHealthCheck() {
	if !u.checking.CompareAndSwap(false, true) {
		return
	}
	if !u.f.group.start(u.checkHealth) {
		u.checking.Store(false)
	}
}

func (u *upstream) checkHealth() {
	defer u.checking.Store(false)
	tick := time.NewTicker(u.f.cfg.HealthInterval)
	defer tick.Stop()
	for !u.gone.Load() {
		if u.probe() {
			if u.fails.Swap(0) >= int32(u.f.cfg.MaxFails) {
				u.f.log.Info("upstream is back", "upstream", u.target)
			}
			return
		}
		if u.f.life.Err() != nil {
			return
		}
		u.metrics.healthFails.Inc()
		if u.fails.Add(1) == int32(u.f.cfg.MaxFails) {
			u.f.log.Warn("upstream is down", "upstream", u.target)
		}
		select {
		case <-u.f.life.Done():
			return
		case <-tick.C:
		}
	}
}

// probe asks over the transport that queries take. Any reply will do: a server that
// says REFUSED is alive.
func (u *upstream) probe() bool {
	msg, err := healthQuery(u.f.cfg.HealthDomain, u.f.cfg.HealthNoRec)
	if err != nil {
		return false // not reached: Validate has packed it
	}
	q, _ := readQuery(msg)
	return u.ask(u.f.life, q, time.Now().Add(healthTimeout)) == nil
}

// ask asks over the transport that queries take, over a connection of its own if that is
// TCP, without a second try.
func (u *upstream) ask(ctx context.Context, q query, end time.Time) error {
	if u.overStream() {
		return u.streams.fresh(ctx, q, end)
	}
	_, err := u.udp.exchange(ctx, q, end)
	return err
}
