package node

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// step is a part of setting up the node that can fail by itself. The names are label values.
type step string

const (
	stepLink    step = "link"
	stepAddress step = "address"
	stepRoute   step = "route"
	stepFlavour step = "flavour"
	stepRaw     step = "raw"
	stepFilter  step = "filter"
	stepNAT     step = "nat"
	stepSet     step = "set"
	stepOwner   step = "owner"
	stepGuard   step = "guard"
	stepLease   step = "lease"
	stepFlows   step = "flows"
	stepForeign step = "foreign"

	stepEndpoints step = "endpoints"
)

// repeatAfter is how long an unchanged problem is not logged again.
const repeatAfter = 10 * time.Minute

// problems remembers what does not work at present, so that each problem is one message and not one each second.
type problems struct {
	log *slog.Logger
	m   *Metrics
	now func() time.Time

	mu   sync.Mutex
	open map[problemKey]problem
}

// problemKey keeps the families apart: one may be fine while the other is not.
type problemKey struct {
	step step
	fam  family // zero for what concerns both
}

func (k problemKey) String() string {
	if k.fam == 0 {
		return string(k.step)
	}
	return string(k.step) + " " + k.fam.String()
}

type problem struct {
	text   string
	logged time.Time
}

func newProblems(log *slog.Logger, m *Metrics) *problems {
	return &problems{log: log, m: m, now: time.Now, open: map[problemKey]problem{}}
}

// fail notes that s failed with err; it returns err.
func (p *problems) fail(s step, fam family, err error) error {
	key := problemKey{s, fam}
	p.m.failures.WithLabelValues(string(s)).Inc()
	p.m.problems.WithLabelValues(string(s)).Set(1)
	text := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.open[key]; ok && old.text == text && p.now().Sub(old.logged) < repeatAfter {
		return err
	}
	p.open[key] = problem{text: text, logged: p.now()}
	p.log.Error("node is not as it should be", "step", key.String(), "error", text)
	return err
}

// ok notes that s succeeded.
func (p *problems) ok(s step, fam family) {
	key := problemKey{s, fam}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, was := p.open[key]; !was {
		return
	}
	delete(p.open, key)
	p.log.Info("node is as it should be again", "step", key.String())
	for other := range p.open {
		if other.step == s {
			return // the metric is of the step, and the other family still has trouble
		}
	}
	p.m.problems.WithLabelValues(string(s)).Set(0)
}

// note is fail with an error and ok without.
func (p *problems) note(s step, fam family, err error) error {
	if err != nil {
		return p.fail(s, fam, err)
	}
	p.ok(s, fam)
	return nil
}

// list gives the open problems, one string each.
func (p *problems) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for s, pr := range p.open {
		out = append(out, s.String()+": "+pr.text)
	}
	slices.Sort(out)
	return out
}

// ErrConflict is in the chain of every error that means: somebody else holds what we need, and nothing was touched.
var ErrConflict = errors.New("conflict")

// conflict makes an ErrConflict.
func conflict(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConflict, fmt.Sprintf(format, args...))
}
