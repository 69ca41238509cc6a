package forward

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodedns/nodedns/cache/internal/wire"
)

func TestParseResolvConf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want, odd  []string
	}{
		{"U07 empty", "", nil, nil},
		{"U07 comments only", "# nameserver 192.0.2.1\n; nameserver 192.0.2.2\n", nil, nil},
		{"U07 tabs and spaces", "\tnameserver\t192.0.2.1  \t\n", []string{"192.0.2.1:53"}, nil},
		{"U07 bare word", "nameserver\nnameserver 192.0.2.1\n", []string{"192.0.2.1:53"}, []string{"nameserver"}},
		{"U07 options", "options ndots:5 rotate timeout:1\nsearch a.test\ndomain b.test\nsortlist 192.0.2.0\n", nil, nil},
		{"U07 five", "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\nnameserver 192.0.2.5",
			[]string{"192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53", "192.0.2.4:53", "192.0.2.5:53"}, nil},
		{"U07 CRLF", "search a.test\r\nnameserver 192.0.2.1\r\n", []string{"192.0.2.1:53"}, nil},
		{"U07 no final newline", "search a.test\nnameserver 192.0.2.1", []string{"192.0.2.1:53"}, nil},
		{"U07 byte order mark", "\xef\xbb\xbfnameserver 192.0.2.1\n", []string{"192.0.2.1:53"}, nil},
		{"U07 twice", "nameserver 192.0.2.1\nnameserver 192.0.2.1\n", []string{"192.0.2.1:53"}, nil},
		{"U07 comment behind", "nameserver 192.0.2.1 # office\n", []string{"192.0.2.1:53"}, nil},
		{"U07 other word", "nameservers 192.0.2.1\nnameserver192.0.2.1\n", nil, nil},
		{"U07 not an address", "nameserver dns.example.test\nnameserver 192.0.2.300\nnameserver 192.0.2.1:53\nnameserver 224.0.0.1\n", nil,
			[]string{"nameserver dns.example.test", "nameserver 192.0.2.300", "nameserver 192.0.2.1:53", "nameserver 224.0.0.1"}},
		{"U07 this host", "nameserver 0.0.0.0\nnameserver ::\n", []string{"127.0.0.1:53", "[::1]:53"}, nil},
		{"U05 link-local with zone", "nameserver fe80::1%dummy0\n", []string{"[fe80::1%dummy0]:53"}, nil},
		{"U05 link-local without", "nameserver fe80::1\n", nil, []string{"nameserver fe80::1"}},
		{"U05 global with zone", "nameserver 2001:db8::53%en0\n", []string{"[2001:db8::53]:53"}, nil},
		{"U05 five digits", "nameserver fe804::1%eth0\nnameserver 192.0.2.53\n", []string{"192.0.2.53:53"}, []string{"nameserver fe804::1%eth0"}},
		{"U05 mapped", "nameserver ::ffff:192.0.2.1\n", []string{"192.0.2.1:53"}, nil},
	} {
		servers, odd := parseResolvConf([]byte(tc.text))
		var got []string
		for _, s := range servers {
			got = append(got, s.String())
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: servers (-want +got):\n%s", tc.name, d)
		}
		if d := cmp.Diff(tc.odd, odd); d != "" {
			t.Errorf("%s: lines skipped (-want +got):\n%s", tc.name, d)
		}
	}
}

// upstreams lists the addresses that are asked now.
func (f *Forward) upstreams() string {
	var s []string
	for _, u := range *f.ups.Load() {
		s = append(s, u.target.String())
	}
	return strings.Join(s, " ")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// U07: files without a server, or that are none, stop nothing; when one gets a server it
// is used.
func TestU07_OddFiles(t *testing.T) {
	t.Parallel()
	for name, makeIt := range map[string]func(path string) error{
		"empty":     func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"comments":  func(path string) error { return os.WriteFile(path, []byte("# nameserver 192.0.2.1\n"), 0o600) },
		"missing":   func(string) error { return nil },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"dangling":  func(path string) error { return os.Symlink("nowhere", path) },
		"device":    func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "resolv.conf")
			if err := makeIt(path); err != nil {
				t.Fatal(err)
			}
			f := start(t, Config{ResolvConf: []string{path}, ResolvConfInterval: 5 * time.Millisecond})
			if _, err := f.ask(t, "a.test"); !errors.Is(err, wire.ErrNoUpstream) {
				t.Errorf("error %v", err)
			}
			if !f.log.says("resolv.conf gives no upstream") || f.value(t, "nodedns_forward_resolv_conf_errors_total") < 1 {
				t.Error("nobody is told")
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, "nameserver 192.0.2.1\n")
			eventually(t, "the server to be used", func() bool { return f.upstreams() == "192.0.2.1:53" })
		})
	}
}

// The file is followed through edits and the symlink swaps of kubelet; while it says
// nothing, what it said before stands.
func TestU07_Watch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "resolv.conf")
	swap := func(n int, text string) {
		t.Helper()
		data := filepath.Join(dir, fmt.Sprintf("..%d", n))
		if err := os.Mkdir(data, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(data, "resolv.conf"), text)
		tmp := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink(filepath.Base(data), tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	swap(1, "nameserver 192.0.2.1\n")
	if err := os.Symlink("..data/resolv.conf", path); err != nil {
		t.Fatal(err)
	}
	f := start(t, Config{ResolvConf: []string{path}, ResolvConfInterval: 5 * time.Millisecond})
	if got := f.upstreams(); got != "192.0.2.1:53" {
		t.Fatalf("upstreams %s", got)
	}
	for n := 2; n < 5; n++ {
		swap(n, fmt.Sprintf("nameserver 192.0.2.%d\nnameserver 192.0.2.9\n", n))
		want := fmt.Sprintf("192.0.2.%d:53 192.0.2.9:53", n)
		eventually(t, want, func() bool { return f.upstreams() == want })
	}
	kept := (*f.ups.Load())[1]
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the loss to be seen", func() bool { return f.log.says("resolv.conf gives no upstream") })
	if got := f.upstreams(); got != "192.0.2.4:53 192.0.2.9:53" {
		t.Errorf("upstreams while the file is gone: %s", got)
	}
	write(t, path, "nameserver 192.0.2.7\nnameserver 192.0.2.9\n")
	eventually(t, "a plain file", func() bool { return f.upstreams() == "192.0.2.7:53 192.0.2.9:53" })
	if (*f.ups.Load())[1] != kept {
		t.Error("an upstream that has stayed is a new one, without its connections")
	}
}

// U10: this process is no upstream of its own.
func TestU10_SelfIsLeftOut(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write(t, path, "nameserver 169.254.25.10\nnameserver 192.0.2.1\nnameserver 127.0.0.1\nnameserver ::1\n")
	for _, tc := range []struct{ self, want string }{
		{"169.254.25.10:53", "192.0.2.1:53 127.0.0.1:53 [::1]:53"},
		{"169.254.25.10:5353", "169.254.25.10:53 192.0.2.1:53 127.0.0.1:53 [::1]:53"},
		{"0.0.0.0:53", "169.254.25.10:53 192.0.2.1:53"},
		{"[::]:53", "169.254.25.10:53 192.0.2.1:53"},
	} {
		f := start(t, Config{ResolvConf: []string{path}, Self: []netip.AddrPort{netip.MustParseAddrPort(tc.self)}})
		if got := f.upstreams(); got != tc.want {
			t.Errorf("listening on %s: upstreams %s, want %s", tc.self, got, tc.want)
		}
		if tc.self != "169.254.25.10:5353" && !f.log.says("this process listens there") {
			t.Errorf("listening on %s: nobody is told", tc.self)
		}
	}
	// Nothing else left: an error that says so, no exit.
	write(t, path, "nameserver 127.0.0.1\n")
	f := start(t, Config{ResolvConf: []string{path}, Self: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}})
	if _, err := f.ask(t, "a.test"); !errors.Is(err, wire.ErrNoUpstream) {
		t.Errorf("error %v", err)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	_, err := New(Config{
		Targets:      []Target{{}, {Addr: netip.MustParseAddrPort("0.0.0.0:53")}},
		Policy:       9,
		MaxFails:     -1,
		HealthDomain: strings.Repeat("a", 64) + ".test",
		LoopZones:    []string{strings.Repeat("a.", 126)},
	}, slog.New(slog.DiscardHandler), NewMetrics(nil))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"0.0.0.0:53", "policy 9", "max fails is negative", "health check domain", "loop zone"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if _, err := New(Config{}, slog.New(slog.DiscardHandler), NewMetrics(nil)); err == nil || !strings.Contains(err.Error(), "no upstream") {
		t.Errorf("without upstreams: %v", err)
	}
}
