package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// fake is a kernel in memory. Its zero value is not ready; newFake makes one.
type fake struct {
	mu     sync.Mutex
	links  map[string]link
	spares []netip.Addr
	sets   map[string]map[netip.Addr]time.Time // entries with the end of their time
	owner  map[family]*fakeOwner
	rules  map[family]*fakeTables
	now    func() time.Time
	// endpoints are those that kube-proxy knows, in nftables mode.
	endpoints map[netip.AddrPort][]netip.AddrPort
	watch     []chan struct{}

	// refuse makes a door fail: the key is the door's name, with a family or table where there is one.
	refuse map[string]error
}

func newFake() *fake {
	f := &fake{
		links: map[string]link{"lo": {Kind: "loopback", Up: true}}, sets: map[string]map[netip.Addr]time.Time{},
		owner: map[family]*fakeOwner{}, rules: map[family]*fakeTables{}, now: time.Now, refuse: map[string]error{},
	}
	for _, fam := range families() {
		f.rules[fam] = &fakeTables{f: f, fam: fam, chains: map[chainKey][]string{}}
	}
	return f
}

// String dumps the state: one line for each thing there is.
func (f *fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.links)) {
		l := f.links[name]
		fmt.Fprintf(&b, "link %s %s up=%t %v\n", name, l.Kind, l.Up, l.Addrs)
	}
	for _, a := range f.spares {
		fmt.Fprintf(&b, "spare %s\n", a)
	}
	for _, name := range slices.Sorted(maps.Keys(f.sets)) {
		fmt.Fprintf(&b, "set %s\n", name)
	}
	for _, fam := range families() {
		if f.owner[fam] != nil {
			fmt.Fprintf(&b, "owner table %s\n", fam)
		}
		for _, k := range eachChain() {
			for _, line := range f.rules[fam].chains[k] {
				fmt.Fprintf(&b, "%s %s %s\n", fam, k.table, line)
			}
		}
	}
	return b.String()
}

func (f *fake) Link(name string) (link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := f.links[name]
	if !ok {
		return link{}, errNoLink
	}
	l.Addrs = slices.Clone(l.Addrs)
	return l, nil
}

func (f *fake) AddLink(name string) error {
	return f.setLink(name, "AddLink", func(l *link) { l.Kind = kindOurs })
}

func (f *fake) SetUp(name string) error {
	return f.setLink(name, "SetUp", func(l *link) { l.Up = true })
}

func (f *fake) AddAddr(name string, a netip.Addr) error {
	return f.setLink(name, "AddAddr "+familyOf(a).String(), func(l *link) {
		if !slices.Contains(l.Addrs, a) {
			l.Addrs = append(l.Addrs, a)
		}
	})
}

func (f *fake) DelAddr(name string, a netip.Addr) error {
	return f.setLink(name, "DelAddr", func(l *link) {
		l.Addrs = slices.DeleteFunc(l.Addrs, func(b netip.Addr) bool { return a == b })
	})
}

// setLink changes a link and tells the watchers.
func (f *fake) setLink(name, door string, change func(*link)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuse[door]; err != nil {
		return err
	}
	l := f.links[name]
	l.Addrs = slices.Clone(l.Addrs)
	change(&l)
	if l.Kind != "" {
		f.links[name] = l
	}
	f.tellLocked()
	return nil
}

func (f *fake) tellLocked() {
	for _, ch := range f.watch {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (f *fake) DelLink(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.links, name)
	f.tellLocked()
	return nil
}

func (f *fake) Holders() (map[netip.Addr][]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[netip.Addr][]string{}
	for name, l := range f.links {
		for _, a := range l.Addrs {
			out[a] = append(out[a], name)
		}
	}
	return out, nil
}

func (f *fake) Spares() ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.spares), nil
}

func (f *fake) AddSpare(a, _ netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuse["AddSpare "+familyOf(a).String()]; err != nil {
		return err
	}
	if !slices.Contains(f.spares, a) {
		f.spares = append(f.spares, a)
	}
	return nil
}

func (f *fake) DelSpare(a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spares = slices.DeleteFunc(f.spares, func(b netip.Addr) bool { return a == b })
	return nil
}

func (f *fake) Watch(ctx context.Context) (<-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuse["Watch"]; err != nil {
		return nil, err
	}
	ch := make(chan struct{}, 1)
	f.watch = append(f.watch, ch)
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watch = slices.DeleteFunc(f.watch, func(c chan struct{}) bool { return c == ch })
		close(ch)
	})
	return ch, nil
}

func (f *fake) EnsureSet(name string, _ family, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuse["EnsureSet"]; err != nil {
		return err
	}
	if f.sets[name] == nil {
		f.sets[name] = map[netip.Addr]time.Time{}
	}
	return nil
}

func (f *fake) AddSet(name string, a netip.Addr, ttl time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sets[name] == nil {
		return unix.ENOENT
	}
	f.sets[name][a] = f.now().Add(ttl)
	return nil
}

func (f *fake) DelSet(name string, a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sets[name], a)
	return nil
}

func (f *fake) Forget(fam family, _ []netip.Addr, _ uint16, _ ...uint8) error {
	return f.refuse["Forget "+fam.String()]
}

func (f *fake) DestroySet(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.rules {
		for _, lines := range t.chains {
			for _, line := range lines {
				if strings.Contains(line, "--match-set "+name+" ") {
					return fmt.Errorf("set %s is in use by %q", name, line)
				}
			}
		}
	}
	delete(f.sets, name)
	return nil
}

// leased says whether the kernel steers questions for a to the cache.
func (f *fake) leased(a netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.owner[familyOf(a)]; o != nil && o.until[a].After(f.now()) {
		return true
	}
	for _, s := range f.sets {
		if s[a].After(f.now()) {
			return true
		}
	}
	return false
}

func (f *fake) Tables(fam family, force Flavour, _ time.Duration) (tables, Flavour, error) {
	if err := f.refuse["Tables "+fam.String()]; err != nil {
		return nil, "", err
	}
	return f.rules[fam], cmpOr(force, Legacy), nil
}

func cmpOr(a, b Flavour) Flavour {
	if a != AutoFlavour {
		return a
	}
	return b
}

func (f *fake) ProxyEndpoints(to netip.AddrPort) ([]netip.AddrPort, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.endpoints[to], f.refuse["ProxyEndpoints"]
}

func (f *fake) InUse(_ family, fl Flavour) bool { return fl == Legacy }

func (f *fake) Owner(spec owned) (lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuse["Owner"]; err != nil {
		return nil, err
	}
	if f.owner[spec.fam] != nil {
		return nil, errors.New("the table is there already")
	}
	o := &fakeOwner{f: f, fam: spec.fam, until: map[netip.Addr]time.Time{}}
	f.owner[spec.fam] = o
	return o, nil
}

// kill does what the kernel does when the process dies.
func (f *fake) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.owner)
}

type fakeOwner struct {
	f     *fake
	fam   family
	until map[netip.Addr]time.Time
}

func (o *fakeOwner) Renew(addrs []netip.Addr, ttl time.Duration) error {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	for _, a := range addrs {
		o.until[a] = o.f.now().Add(ttl)
	}
	return nil
}

func (o *fakeOwner) Drop(addrs []netip.Addr) error {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	for _, a := range addrs {
		delete(o.until, a)
	}
	return nil
}

func (o *fakeOwner) Check() (bool, error) { return false, nil }

func (o *fakeOwner) Close() error {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	delete(o.f.owner, o.fam)
	return nil
}

type chainKey struct{ table, chain string }

// eachChain lists the chains that can hold rules of ours.
func eachChain() []chainKey {
	var out []chainKey
	for _, t := range ourTables() {
		for _, c := range t.chains {
			out = append(out, chainKey{t.table, c})
		}
	}
	return out
}

// fakeTables keeps rules as the lines that iptables -S prints.
type fakeTables struct {
	f          *fake
	fam        family
	chains     map[chainKey][]string
	generation int
	// hide keeps rules from being listed, as some iptables versions do.
	hide bool
	// clear takes all rules away before each listing, clearNext after the next commit, as others do.
	clear, clearNext bool
}

func (t *fakeTables) refused(doors ...string) error {
	for _, d := range doors {
		if err := t.f.refuse[d]; err != nil {
			return err
		}
	}
	return nil
}

func (t *fakeTables) List(table string, chains []string) ([]string, error) {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	if err := t.refused("List", "table "+table); err != nil {
		return nil, err
	}
	if t.clear {
		clear(t.chains)
		t.generation++
	}
	var out []string
	for _, chain := range chains {
		out = append(out, "-P "+chain+" ACCEPT")
		if !t.hide {
			out = append(out, t.chains[chainKey{table, chain}]...)
		}
	}
	return out, nil
}

func (t *fakeTables) Commit(table string, changes []change) error {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	if err := t.refused("Commit", "table "+table); err != nil {
		return err
	}
	next := map[chainKey][]string{}
	for _, c := range changes {
		k := chainKey{table, c.chain}
		lines, ok := next[k]
		if !ok {
			lines = slices.Clone(t.chains[k])
		}
		line := "-A " + c.chain + joinWords(c.spec)
		switch {
		case c.insert && (c.pos < 1 || c.pos > len(lines)+1):
			return fmt.Errorf("index of insertion too big: %d", c.pos)
		case c.insert:
			lines = slices.Insert(lines, c.pos-1, line)
		default:
			i := slices.Index(lines, line)
			if i < 0 {
				return errors.New("bad rule (does a matching rule exist in that chain?)")
			}
			lines = slices.Delete(lines, i, i+1)
		}
		next[k] = lines
	}
	maps.Copy(t.chains, next)
	t.generation++
	if t.clearNext {
		t.clearNext = false
		clear(t.chains)
		t.generation++
	}
	return nil
}

// Try refuses what a word of the rule is refused for, such as "match socket".
func (t *fakeTables) Try(table string, spec ...string) error {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	doors := []string{"Try", "table " + table}
	for i, w := range spec {
		if w == "-m" || w == "-j" {
			doors = append(doors, w+" "+spec[i+1])
		}
	}
	return t.refused(doors...)
}

func (t *fakeTables) EndTry(string) error { return nil }

func (t *fakeTables) Generation(string) (string, error) {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	return fmt.Sprint(t.generation), t.refused("Generation")
}
