package node

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// sets is what the node room needs of ipset. A fake stands in for it in tests.
type sets interface {
	// EnsureSet makes the set of addresses with timeouts, or adopts one that is there.
	EnsureSet(name string, fam family, ttl time.Duration) error
	// AddSet puts a into the set for ttl from now, whether it is there already or not.
	AddSet(name string, a netip.Addr, ttl time.Duration) error
	// DelSet takes a out; no error if entry or set is gone.
	DelSet(name string, a netip.Addr) error
	// DestroySet removes the set; no error if it is gone.
	DestroySet(name string) error
}

// lease is the switch of one family: while it lasts the kernel steers clients to the cache.
type lease interface {
	// Renew makes it last for ttl from now, for addrs.
	Renew(addrs []netip.Addr, ttl time.Duration) error
	// Drop ends it at once for addrs; no error if it has ended.
	Drop(addrs []netip.Addr) error
	// Check puts back what the lease needs and says whether anything was missing.
	Check() (repaired bool, err error)
	// Close removes what it needs. The rules that refer to it must be gone.
	Close() error
}

// setLease is a lease in an ipset that iptables rules look at.
type setLease struct {
	sets sets
	name string
	fam  family
	ttl  time.Duration
}

func (s *setLease) Renew(addrs []netip.Addr, ttl time.Duration) error {
	var errs []error
	for _, a := range addrs {
		if err := s.sets.AddSet(s.name, a, ttl); err != nil {
			errs = append(errs, fmt.Errorf("renewing the lease of %s in set %s: %w", a, s.name, err))
		}
	}
	return errors.Join(errs...)
}

func (s *setLease) Drop(addrs []netip.Addr) error {
	var errs []error
	for _, a := range addrs {
		if err := s.sets.DelSet(s.name, a); err != nil {
			errs = append(errs, fmt.Errorf("ending the lease of %s in set %s: %w", a, s.name, err))
		}
	}
	return errors.Join(errs...)
}

// Check does nothing: the kernel does not let go of a set that rules refer to.
func (s *setLease) Check() (bool, error) { return false, nil }

func (s *setLease) Close() error {
	if err := s.sets.DestroySet(s.name); err != nil {
		return fmt.Errorf("removing set %s: %w", s.name, err)
	}
	return nil
}

// plainLease has no kernel to end it: the rules are put in and taken out.
type plainLease struct {
	apply func(steer bool) error
	on    bool
}

func (p *plainLease) Renew([]netip.Addr, time.Duration) error {
	if p.on {
		return nil
	}
	if err := p.apply(true); err != nil {
		return err
	}
	p.on = true
	return nil
}

func (p *plainLease) Drop([]netip.Addr) error {
	p.on = false
	return p.apply(false)
}

func (p *plainLease) Check() (bool, error) { return false, nil }

func (p *plainLease) Close() error { return nil }
