package certs

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testCA = "test-ca"

// store is the Secret and the webhook configuration that replicas share, and the authority's rule for both.
type store struct {
	mu       sync.Mutex
	caLife   time.Duration
	leafLife time.Duration
	cert     *x509.Certificate
	key      crypto.Signer
	bundle   []byte
	exists   bool // whether there is a configuration
	down     error
	watchers []chan<- struct{}
	serial   int64
	writes   int
	made     time.Time     // when the CA was made
	ahead    time.Duration // of the clock of who makes it
}

// held gives the caBundle and the number of writes so far.
func (s *store) held() (bundle string, writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.bundle), s.writes
}

func newStore() *store {
	return &store{caLife: 12 * time.Minute, leafLife: 4 * time.Minute, exists: true}
}

// replica is one process's view of the store: it is the Authority and the Cluster of one SelfManaged.
type replica struct {
	*store
	rotations []chan<- struct{}
	seen      *x509.Certificate
	seenKey   crypto.Signer
	lag       time.Duration // until it sees a new CA
}

func (r *replica) Run(ctx context.Context) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		r.mu.Lock()
		if r.down == nil {
			if r.cert == nil || time.Now().After(agesAt(r.cert)) {
				r.makeCALocked()
			}
			if r.seen != r.cert && time.Since(r.made) >= r.lag {
				r.seen, r.seenKey = r.cert, r.key
				for _, ch := range r.rotations {
					select {
					case ch <- struct{}{}:
					default:
					}
				}
			}
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (s *store) makeCALocked() {
	s.serial++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(s.serial), Subject: pkix.Name{CommonName: testCA}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(s.ahead), NotAfter: time.Now().Add(s.ahead + s.caLife),
	}
	s.made = time.Now()
	s.cert, s.key = signed(template, template, key.Public(), key), key
}

func signed(template, parent *x509.Certificate, public any, key crypto.Signer) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return cert
}

func (r *replica) Sign(template *x509.Certificate) (*x509.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		return nil, errors.New("no CA yet")
	}
	r.serial++
	template.SerialNumber = big.NewInt(r.serial)
	template.NotBefore, template.NotAfter = time.Now(), time.Now().Add(r.leafLife)
	return signed(template, r.seen, template.PublicKey, r.seenKey), nil
}

func (r *replica) WatchRotation(ch chan<- struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rotations = append(r.rotations, ch)
}
func (r *replica) StopWatchingRotation(chan<- struct{}) {}

func (s *store) CA(context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert == nil || s.down != nil {
		return nil, s.down
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw}), nil
}

func (s *store) Bundles(context.Context) ([][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil || !s.exists {
		return nil, s.down
	}
	return [][]byte{bytes.Clone(s.bundle)}, nil
}

func (s *store) SetBundle(_ context.Context, change func([]byte) []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil || !s.exists {
		return s.down
	}
	s.setLocked(change(s.bundle))
	return nil
}

func (s *store) setLocked(bundle []byte) {
	s.bundle = bundle
	s.writes++
	for _, ch := range s.watchers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (s *store) Watch(ctx context.Context, changed chan<- struct{}) error {
	s.mu.Lock()
	s.watchers = append(s.watchers, changed)
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}

// apiServer verifies what a replica serves as an API server would that sees the caBundle late and whose clock is slow.
type apiServer struct {
	lag     time.Duration
	skew    time.Duration
	history []seenBundle
}

type seenBundle struct {
	at     time.Time
	bundle []byte
}

func (a *apiServer) call(t *testing.T, s *store, source *SelfManaged, name string) error {
	t.Helper()
	s.mu.Lock()
	a.history = append(a.history, seenBundle{time.Now(), bytes.Clone(s.bundle)})
	s.mu.Unlock()
	var bundle []byte
	for _, h := range slices.Backward(a.history) {
		if time.Since(h.at) >= a.lag {
			bundle = h.bundle
			break
		}
	}
	pair, err := source.GetCertificate(nil)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: time.Now().Add(-a.skew),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}

func testConfig() SelfManagedConfig {
	return SelfManagedConfig{CommonName: testCA, DNSNames: []string{"hook", "hook.ns", "hook.ns.svc", "hook.ns.svc.cluster.local"},
		LeafDuration: 4 * time.Minute, Overlap: 30 * time.Second}
}

// start runs replicas over s and gives them with a function that ends them.
func start(t *testing.T, s *store, n int, log *slog.Logger) ([]*SelfManaged, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var sources []*SelfManaged
	var done sync.WaitGroup
	for i := range n {
		r := &replica{store: s, lag: time.Duration(i) * 700 * time.Millisecond}
		source, err := NewSelfManaged(testConfig(), r, r, log)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, source)
		done.Go(func() {
			if err := source.Run(ctx); err != nil {
				t.Errorf("replica: %v", err)
			}
		})
	}
	return sources, func() { cancel(); done.Wait() }
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// W03: rotations of leaf and CA, with two replicas, an API server that sees changes 10 s late and a clock 20 s slow;
// whatever happens to Secret and caBundle on the way, no call fails.
func TestW03RotationLosesNoCall(t *testing.T) {
	for name, disturb := range map[string]func(s *store){
		"undisturbed":    func(*store) {},
		"Secret deleted": func(s *store) { s.cert = nil },
		"caBundle cleared before the rotation": func(s *store) {
			s.setLocked(nil)
			s.cert = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				sources, stop := start(t, s, 2, discard())
				defer stop()
				time.Sleep(40 * time.Second)
				api := &apiServer{lag: 10 * time.Second, skew: 20 * time.Second}
				for range 60 {
					time.Sleep(500 * time.Millisecond)
					_ = api.call(t, s, sources[0], "hook.ns.svc") // fills the history
				}
				authorities := map[string]bool{}
				for i := range 5 * 960 { // five rotations of the CA
					time.Sleep(500 * time.Millisecond)
					for n, source := range sources {
						if err := source.Ready(); err != nil {
							t.Fatalf("call %d: replica %d is not ready: %v", i, n, err)
						}
						if err := api.call(t, s, source, "hook.ns.svc"); err != nil && name != "caBundle cleared before the rotation" {
							t.Fatalf("call %d: replica %d: %v", i, n, err)
						}
					}
					api.history = api.history[max(0, len(api.history)-100):]
					s.mu.Lock()
					authorities[string(s.bundle)] = true
					if i%1500 == 1000 {
						disturb(s)
					}
					s.mu.Unlock()
				}
				if len(authorities) < 5 {
					t.Errorf("only %d states of the caBundle were seen: nothing rotated", len(authorities))
				}
				bundle, _ := s.held()
				if n := len(parseBundle([]byte(bundle))); n > 3 {
					t.Errorf("%d authorities in the caBundle: old ones are not taken away", n)
				}
			})
		})
	}
}

func TestW03NamesInTheCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		sources, stop := start(t, s, 1, discard())
		defer stop()
		time.Sleep(time.Minute)
		for _, name := range testConfig().DNSNames {
			if err := (&apiServer{}).call(t, s, sources[0], name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A caBundle that a re-apply of the manifest has cleared, or that somebody has filled with something else, is put right
// at once.
func TestBundleIsPutRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		_, stop := start(t, s, 2, discard())
		defer stop()
		time.Sleep(time.Minute)
		good, _ := s.held()
		for _, bad := range []string{"", "\n", "not PEM", good + good, good + "garbage"} {
			s.mu.Lock()
			s.setLocked([]byte(bad))
			s.mu.Unlock()
			synctest.Wait()
			if now, _ := s.held(); now != good {
				t.Errorf("after %q: %q", bad, now)
			}
		}
		_, before := s.held()
		time.Sleep(2 * time.Minute)
		if _, after := s.held(); after != before {
			t.Errorf("%d writes with nothing to put right: replicas do not agree", after-before)
		}
	})
}

func TestFirstReplicaIsReadySoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sources, stop := start(t, newStore(), 2, discard())
		defer stop()
		if sources[0].Ready() == nil || !sources[0].Expiry().IsZero() {
			t.Error("ready before anything was signed")
		}
		time.Sleep(freshness + 11*time.Second)
		for i, source := range sources {
			if err := source.Ready(); err != nil {
				t.Errorf("replica %d: %v", i, err)
			}
		}
	})
}

// A replica that starts after the CA was lost has a certificate the API servers do not know yet, while its sister goes
// on with one they know: it must not be called.
func TestLateReplicaWaitsForItsCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		_, stop := start(t, s, 1, discard())
		defer stop()
		time.Sleep(time.Minute)
		s.mu.Lock()
		s.cert = nil
		s.mu.Unlock()
		late, stopLate := start(t, s, 1, discard())
		defer stopLate()
		time.Sleep(20 * time.Second)
		if late[0].Ready() == nil {
			t.Error("ready while its CA is new")
		}
		time.Sleep(20 * time.Second)
		if err := late[0].Ready(); err != nil {
			t.Error(err)
		}
	})
}

func TestWithoutConfigurationItGetsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.exists = false
		sources, stop := start(t, s, 1, discard())
		defer stop()
		time.Sleep(20 * time.Second)
		if err := sources[0].Ready(); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.exists = true
		s.setLocked(nil)
		s.mu.Unlock()
		synctest.Wait()
		if bundle, _ := s.held(); len(parseBundle([]byte(bundle))) != 1 {
			t.Errorf("caBundle of a new configuration: %q", bundle)
		}
	})
}

// While the API server is away the last certificate is served, and what was missed is made good afterwards.
func TestAPIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		s := newStore()
		sources, stop := start(t, s, 1, slog.New(slog.NewTextHandler(&logged, nil)))
		defer stop()
		time.Sleep(time.Minute)
		set := func(err error) { s.mu.Lock(); s.down = err; s.mu.Unlock() }
		set(errors.New("connection refused"))
		time.Sleep(2 * time.Minute)
		if err := (&apiServer{}).call(t, s, sources[0], "hook.ns.svc"); err != nil || sources[0].Ready() != nil {
			t.Errorf("while it is away: %v, %v", err, sources[0].Ready())
		}
		time.Sleep(10 * time.Minute) // the certificate runs out
		if sources[0].Ready() == nil {
			t.Error("ready with an expired certificate")
		}
		set(nil)
		time.Sleep(time.Minute)
		if err := (&apiServer{}).call(t, s, sources[0], "hook.ns.svc"); err != nil || sources[0].Ready() != nil {
			t.Errorf("after it is back: %v, %v", err, sources[0].Ready())
		}
		stop()
		if n := strings.Count(logged.String(), "connection refused"); n == 0 || n > 5 {
			t.Errorf("the trouble was logged %d times", n)
		}
		if strings.Contains(logged.String(), "PRIVATE") || strings.Contains(logged.String(), "BEGIN") {
			t.Error("PEM in the log")
		}
	})
}

func TestWantBundle(t *testing.T) {
	now := time.Now()
	s := newStore()
	make := func(name string, from, to time.Duration) *x509.Certificate {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		s.serial++
		template := &x509.Certificate{SerialNumber: big.NewInt(s.serial), Subject: pkix.Name{CommonName: name}, IsCA: true,
			BasicConstraintsValid: true, NotBefore: now.Add(from), NotAfter: now.Add(to)}
		return signed(template, template, key.Public(), key)
	}
	current := make(testCA, -time.Hour, time.Hour)
	for name, tt := range map[string]struct {
		other  *x509.Certificate
		linger time.Duration
		kept   bool
	}{
		"superseded lately":   {make(testCA, -2*time.Hour, time.Hour), 2 * time.Hour, true},
		"superseded long ago": {make(testCA, -2*time.Hour, time.Hour), time.Minute, false},
		"expired":             {make(testCA, -2*time.Hour, -time.Minute), 2 * time.Hour, false},
		"newer than ours":     {make(testCA, -time.Minute, time.Hour), time.Minute, true},
		"a stranger's":        {make("stranger", -time.Minute, time.Hour), 2 * time.Hour, false},
	} {
		got := wantBundle(formatBundle([]*x509.Certificate{tt.other, current}), testCA, []*x509.Certificate{current}, tt.linger, now)
		if contains(got, tt.other) != tt.kept || !contains(got, current) {
			t.Errorf("%s: kept %t, want %t", name, contains(got, tt.other), tt.kept)
		}
	}
}

func TestSelfManagedConfigValidate(t *testing.T) {
	for _, bad := range []SelfManagedConfig{{}, {CommonName: "x"}, {CommonName: "x", DNSNames: []string{"y"}, Overlap: -1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
