package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
)

// outage is a time in which the picture of the cluster is not kept: decisions rest on what was last known.
type outage struct {
	since time.Time
	why   string
}

// condition is the state of the picture in the words of a condition, for /readyz. The replica stays ready: what it last
// knew is a better ground than none, and an API server that does not reach it would leave every Pod as it is.
func (o *outage) condition() string {
	if o == nil {
		return "StateCurrent=True"
	}
	return fmt.Sprintf("StateCurrent=False since=%s: %s; decisions rest on the last known state", o.since.UTC().Format(time.RFC3339), o.why)
}

// stale is for how long the picture has not been kept; zero while it is.
func (p *picture) stale() time.Duration {
	if o := p.outage.Load(); o != nil {
		return time.Since(o.since)
	}
	return 0
}

// watchOutage tells by log and Event when the picture ceases to be kept and when it is kept again, until ctx ends. It
// looks at the watches each second, and every few seconds asks the API server for something else: a connection that
// swallows everything shows by that first.
func (p *picture) watchOutage(ctx context.Context, client kubernetes.Interface) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var unanswered *outage
	for second := 0; ; second++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if second%5 == 0 {
			unanswered = ask(ctx, client, unanswered)
		}
		if ctx.Err() == nil && p.known() {
			p.judge(unanswered, time.Now())
		}
	}
}

// ask gives the outage that a request without an answer means, nil if there is one; before is what it gave last.
func ask(ctx context.Context, client kubernetes.Interface, before *outage) *outage {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := client.CoreV1().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	switch {
	case err == nil:
		return nil
	case before != nil:
		return before
	}
	return &outage{since: begin, why: "the API server does not answer: " + err.Error()}
}

func (p *picture) judge(unanswered *outage, now time.Time) {
	before, is := p.outage.Load(), unanswered
	if why, since := p.streams.broken(now); why != "" {
		is = &outage{since: since, why: why}
	}
	switch {
	case is != nil && before == nil:
		p.log.Warn("the state of the cluster is not kept, going on with the last known", "why", is.why)
	case is == nil && before != nil:
		p.log.Info("the state of the cluster is kept again", "after", now.Sub(before.since).Round(time.Second))
	}
	if is != nil && before != nil && before.since.Before(is.since) {
		is = &outage{since: before.since, why: is.why} // one outage, however its reasons follow each other
	}
	p.outage.Store(is)
	if (is == nil) != (before == nil) && p.told != nil {
		p.told(is)
	}
}
