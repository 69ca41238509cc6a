package clients_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// libraries are the C compilers and what their C library does with a truncated reply.
var libraries = []struct {
	name, compiler string
	tcp            bool     // it asks again over TCP
	options        []string // of resolv.conf, by environment
}{
	{"glibc", "gcc", true, []string{"", "edns0", "edns0 trust-ad", "use-vc", "single-request", "single-request-reopen", "rotate"}},
	// musl 1.2.3, which Debian 12 has, takes a truncated reply for the answer.
	{"musl", "musl-gcc", false, []string{""}},
}

// TestLibc asks as every program does that calls getaddrinfo. Both families go out at once from one socket, and glibc
// takes the two replies in any order.
func TestLibc(t *testing.T) {
	for _, l := range libraries {
		need(t, l.compiler)
		program := filepath.Join(t.TempDir(), l.name)
		if out, err := exec.CommandContext(t.Context(), l.compiler, "-O1", "-Wall", "-Werror", "-o", program, "testdata/lookup.c").CombinedOutput(); err != nil {
			t.Fatalf("compiling with %s: %v\n%s", l.compiler, err, out)
		}
		for _, options := range l.options {
			t.Run(strings.TrimSuffix(l.name+" "+options, " "), func(t *testing.T) {
				lookup := func(args ...string) string {
					return said(t, []string{"RES_OPTIONS=" + options}, program, args...)
				}
				check := func(want string, args ...string) {
					t.Helper()
					if got := lookup(args...); got != want {
						t.Errorf("lookup %v: %q, want %q", args, got, want)
					}
				}
				check("a.test 192.0.2.1 2001:db8::1\nv4.test 192.0.2.4\nalias.test 192.0.2.1 2001:db8::1\nnothing.test error NONAME\n",
					"0", "a.test", "v4.test", "alias.test", "nothing.test")
				check("A.Test 192.0.2.1\n"+longest()[:253]+" 192.0.2.12\n", "4", "A.Test", longest()[:253])
				check("a.test 2001:db8::1\n", "6", "a.test")
				check("slow.test 192.0.2.9\n", "0", "slow.test")
				failure := "AGAIN"
				if options == "use-vc" {
					failure = "NONAME" // which is what glibc makes of SERVFAIL over TCP
				}
				check("bogus.test error "+failure+"\n", "4", "bogus.test")
				check("192.0.2.1 a.test\n192.0.2.2 error\n", "r", "192.0.2.1", "192.0.2.2")
				many := strings.Fields(lookup("4", "many.test"))
				if n := len(many) - 1; n != 40 && (l.tcp || n < 20) {
					t.Errorf("many.test has %d addresses: %v", n, many)
				}
				slices.Sort(many)
				if n := len(slices.Compact(many)); n < 21 {
					t.Errorf("%d different addresses of many.test", n-1)
				}
			})
		}
	}
}

// TestGetent asks through the name service switch.
func TestGetent(t *testing.T) {
	need(t, "getent")
	for _, c := range []struct{ args, want string }{
		{"ahostsv4 a.test", "192.0.2.1 STREAM a.test\n192.0.2.1 DGRAM\n192.0.2.1 RAW\n"},
		{"hosts v4.test", "192.0.2.4 v4.test\n"},
		{"hosts alias.test", "2001:db8::1 a.test alias.test\n"},
		{"hosts 192.0.2.1", "192.0.2.1 a.test\n"},
		{"hosts nothing.test", ""},
	} {
		if got := said(t, nil, "getent", strings.Fields(c.args)...); got != c.want {
			t.Errorf("getent %s: %q, want %q", c.args, got, c.want)
		}
	}
	if n := strings.Count(said(t, nil, "getent", "ahostsv4", "many.test"), "STREAM"); n != 40 {
		t.Errorf("getent: %d addresses of many.test, want 40 (over TCP)", n)
	}
	for i := range 3 { // the same from memory
		if got := said(t, nil, "getent", "ahosts", "v4.test"); !strings.HasPrefix(got, "192.0.2.4 STREAM v4.test\n") {
			t.Error(fmt.Sprint(i), got)
		}
	}
}
