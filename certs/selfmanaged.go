package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cert-manager/cert-manager/pkg/server/tls/authority"
	"golang.org/x/sync/errgroup"
)

// Authority signs serving certificates; *authority.DynamicAuthority of cert-manager is one, which keeps its CA in a
// Secret and makes a new one when two thirds of its life are over, or when the Secret is gone or unusable.
type Authority interface {
	// Run keeps the authority until ctx ends.
	Run(ctx context.Context) error
	// Sign signs the template with the present CA and sets the times; an error while there is none.
	Sign(template *x509.Certificate) (*x509.Certificate, error)
	// WatchRotation makes ch receive, unless it is full, whenever the CA has changed.
	WatchRotation(ch chan<- struct{})
	StopWatchingRotation(ch chan<- struct{})
}

var _ Authority = (*authority.DynamicAuthority)(nil)

// Cluster is where the CA is read from and the trust in it is written to.
type Cluster interface {
	// CA gives the PEM text of the present CA certificate; nil if there is none.
	CA(ctx context.Context) ([]byte, error)
	// Bundles gives the caBundle of each webhook in the configuration; none if there is no configuration.
	Bundles(ctx context.Context) ([][]byte, error)
	// SetBundle writes the caBundle of every webhook. change is called with each present one and may be called again
	// after a conflict.
	SetBundle(ctx context.Context, change func(bundle []byte) []byte) error
	// Watch sends on changed, unless it is full, after anything in the configuration has changed, until ctx ends.
	Watch(ctx context.Context, changed chan<- struct{}) error
}

// SelfManagedConfig of a SelfManaged source.
type SelfManagedConfig struct {
	// CommonName is that of the authority's certificates, by which those in a caBundle are known as ours.
	CommonName string
	// DNSNames and IPs are what the certificate is for.
	DNSNames []string
	IPs      []net.IP
	// LeafDuration is the life of a serving certificate, as the authority signs it. Zero: 7 days.
	LeafDuration time.Duration
	// Overlap is how long a new CA stands in the caBundle before a certificate of it is served: by then every API
	// server has seen it, and the certificate is valid by a clock that is late by as much. Zero: 30 s.
	Overlap time.Duration
	// Interval is how often everything is looked at, whether or not a change was seen. Zero: 10 s.
	Interval time.Duration
}

// Validate lists every problem of c.
func (c SelfManagedConfig) Validate() error {
	var errs []error
	if c.CommonName == "" {
		errs = append(errs, errors.New("a common name for the authority is needed"))
	}
	if len(c.DNSNames) == 0 && len(c.IPs) == 0 {
		errs = append(errs, errors.New("a name or address for the certificate is needed"))
	}
	for name, d := range map[string]time.Duration{"leaf duration": c.LeafDuration, "overlap": c.Overlap, "interval": c.Interval} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s %s: want a positive duration", name, d))
		}
	}
	return errors.Join(errs...)
}

// SelfManaged keeps an authority, the certificate it signs, and the caBundle. Every replica runs its own; they meet in
// the Secret and in the caBundle, to which each only adds what it needs and takes away what nobody can need any more.
//
// A new certificate always takes the same way, whether the old one aged or the CA changed: it is signed; its CA is seen
// to stand in the caBundle for Overlap; then it is served.
type SelfManaged struct {
	cfg       SelfManagedConfig
	authority Authority
	cluster   Cluster
	log       *slog.Logger

	mu      sync.RWMutex
	current *leaf // being served
	trusted error // why a caller may not accept current

	// Only Run touches these.
	next    *leaf // signed, waiting
	rotated bool  // the authority has said that its CA changed
	begun   bool  // the first turn is over
	problem string
}

// leaf is a serving certificate with the authority that signed it.
type leaf struct {
	pair      *tls.Certificate
	ca        *x509.Certificate
	trustedAt time.Time // since when the ca is valid and has been seen in the caBundle; zero: not yet
}

// NewSelfManaged makes a source that signs its certificates by authority.
func NewSelfManaged(cfg SelfManagedConfig, authority Authority, cluster Cluster, log *slog.Logger) (*SelfManaged, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.LeafDuration == 0 {
		cfg.LeafDuration = 7 * 24 * time.Hour
	}
	if cfg.Overlap == 0 {
		cfg.Overlap = 30 * time.Second
	}
	if cfg.Interval == 0 {
		cfg.Interval = 10 * time.Second
	}
	return &SelfManaged{cfg: cfg, authority: authority, cluster: cluster, log: log, trusted: ErrNoCertificate}, nil
}

// Run keeps authority, certificate and caBundle until ctx ends.
func (s *SelfManaged) Run(ctx context.Context) error {
	rotated, changed := make(chan struct{}, 1), make(chan struct{}, 1)
	s.authority.WatchRotation(rotated)
	defer s.authority.StopWatchingRotation(rotated)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := s.authority.Run(ctx); err != nil {
			return fmt.Errorf("running the certificate authority: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		if err := s.cluster.Watch(ctx, changed); err != nil {
			return fmt.Errorf("watching the webhook configuration: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		ticker := time.NewTicker(s.cfg.Interval)
		defer ticker.Stop()
		for {
			wait := s.turn(ctx)
			var timer <-chan time.Time // a certificate that is due before the next tick
			if wait > 0 && wait < s.cfg.Interval {
				timer = time.After(wait)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-rotated:
				s.rotated = true
			case <-changed:
			case <-ticker.C:
			case <-timer:
			}
		}
	})
	return group.Wait()
}

// turn does whatever is to be done now and says how long until the next thing is, zero if that is not known.
func (s *SelfManaged) turn(ctx context.Context) time.Duration {
	err := s.sign(ctx)
	if trustErr := s.trust(ctx); trustErr != nil {
		err = errors.Join(err, trustErr)
	}
	switch {
	case err == nil:
		s.problem = ""
	case ctx.Err() != nil:
	case !s.begun:
		s.log.Debug("waiting for the first certificate", "error", err) // the authority has just been started
	case err.Error() != s.problem:
		s.problem = err.Error()
		s.log.Warn("certificates are not in order, trying again", "error", err)
	}
	s.begun = true
	return s.promote()
}

// sign makes the next certificate if one is due.
func (s *SelfManaged) sign(ctx context.Context) error {
	ca, err := s.cluster.CA(ctx)
	if err != nil {
		return fmt.Errorf("reading the CA: %w", err)
	}
	present := parseBundle(ca)
	newest := s.next
	if newest == nil {
		newest = s.current
	}
	if newest != nil && len(present) > 0 && newest.ca.Equal(present[0]) && time.Now().Before(agesAt(newest.pair.Leaf)) {
		s.rotated = false
		return nil
	}
	if newest != nil && len(present) == 0 && !s.rotated {
		return nil // the authority is about to make a new CA, and will say so
	}
	next, err := newLeaf(s.authority, s.cfg)
	if err != nil {
		return err
	}
	for _, cert := range present {
		if next.pair.Leaf.CheckSignatureFrom(cert) == nil {
			next.ca = cert
			s.next, s.rotated = next, false
			return nil
		}
	}
	return errors.New("the authority has signed with another CA than the Secret has; it will see the change")
}

// trust puts the authorities that matter into the caBundle and notes since when they have been there.
func (s *SelfManaged) trust(ctx context.Context) error {
	var needed []*x509.Certificate
	for _, l := range []*leaf{s.current, s.next} {
		if l != nil {
			needed = append(needed, l.ca)
		}
	}
	if len(needed) == 0 {
		return nil
	}
	bundles, err := s.cluster.Bundles(ctx)
	if err != nil {
		return fmt.Errorf("reading the caBundle: %w", err)
	}
	want := func(bundle []byte) []byte {
		return wantBundle(bundle, s.cfg.CommonName, needed, s.cfg.LeafDuration+2*s.cfg.Overlap, time.Now())
	}
	for _, bundle := range bundles {
		if string(want(bundle)) == string(bundle) {
			continue
		}
		if err := s.cluster.SetBundle(ctx, want); err != nil {
			return fmt.Errorf("writing the caBundle: %w", err)
		}
		s.log.Info("caBundle written", "authorities", len(parseBundle(want(bundle))))
		break
	}
	now := time.Now()
	for _, l := range []*leaf{s.current, s.next} {
		switch {
		case l == nil || !l.trustedAt.IsZero():
		case l.ca.NotBefore.After(now):
			// Made by a replica whose clock is ahead: by ours, and so perhaps by the API servers', it is not valid yet.
			l.trustedAt = l.ca.NotBefore
		case s.current == nil:
			l.trustedAt = now.Add(s.firstWait(bundles, l.ca, now) - s.cfg.Overlap)
		default:
			l.trustedAt = now
		}
	}
	return nil
}

// freshness is what a replica's first certificate waits at least, for clocks that are a little late.
const freshness = 5 * time.Second

// firstWait is how long a replica that has just started must not be called. Where nothing but its own CA is in the
// caBundle no call succeeds that a premature one could spoil. Otherwise others serve, and its CA must have been known
// for Overlap; one that stood there already is as old as it is, for it is published as soon as it is made.
func (s *SelfManaged) firstWait(bundles [][]byte, ca *x509.Certificate, now time.Time) time.Duration {
	wait := freshness
	for _, bundle := range bundles {
		others := slices.ContainsFunc(parseBundle(bundle), func(cert *x509.Certificate) bool {
			return cert.Subject.CommonName == s.cfg.CommonName && !cert.Equal(ca)
		})
		switch {
		case others && contains(bundle, ca):
			wait = max(wait, ca.NotBefore.Add(s.cfg.Overlap).Sub(now))
		case others:
			wait = s.cfg.Overlap
		}
	}
	return min(wait, s.cfg.Overlap)
}

// promote serves the next certificate once it is due, and says in how long there will be something to do.
func (s *SelfManaged) promote() time.Duration {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := s.next; next != nil {
		due := next.trustedAt.Add(s.cfg.Overlap)
		// With nothing valid to serve there is nothing to wait for; Ready tells callers to stay away meanwhile.
		if s.current == nil || now.After(s.current.pair.Leaf.NotAfter) || !next.trustedAt.IsZero() && !now.Before(due) {
			s.current, s.next = next, nil
			s.log.Info("serving certificate taken up", "not_after", next.pair.Leaf.NotAfter, "dns_names", next.pair.Leaf.DNSNames)
		}
	}
	s.trusted = s.distrust(now)
	var due time.Time
	switch {
	case s.current == nil:
		return 0
	case s.next != nil:
		due = s.next.trustedAt.Add(s.cfg.Overlap)
	case s.trusted != nil:
		due = s.current.trustedAt.Add(s.cfg.Overlap)
	default:
		due = agesAt(s.current.pair.Leaf)
	}
	// What is overdue could not be done, and waits for the next tick like everything that failed.
	return max(0, due.Sub(now))
}

// distrust says why a caller may not accept the current certificate, nil if it will.
func (s *SelfManaged) distrust(now time.Time) error {
	switch {
	case s.current == nil:
		return ErrNoCertificate
	case s.current.trustedAt.IsZero():
		return errors.New("the certificate's CA is not in the caBundle yet")
	case now.Before(s.current.trustedAt.Add(s.cfg.Overlap)):
		return fmt.Errorf("the certificate's CA has been in the caBundle for less than %s", s.cfg.Overlap)
	}
	return nil
}

// GetCertificate gives the certificate to serve.
func (s *SelfManaged) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.current == nil {
		return nil, ErrNoCertificate
	}
	return s.current.pair, nil
}

// Ready is nil when the API servers trust the certificate being served.
func (s *SelfManaged) Ready() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.trusted == nil && time.Now().After(s.current.pair.Leaf.NotAfter) {
		return fmt.Errorf("the serving certificate expired at %s", s.current.pair.Leaf.NotAfter)
	}
	return s.trusted
}

// Expiry is the end of the certificate being served.
func (s *SelfManaged) Expiry() time.Time {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.current == nil {
		return time.Time{}
	}
	return s.current.pair.Leaf.NotAfter
}
