package uml_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodedns/nodedns/e2e/uml"
)

// ownerVar makes the test program one that only boots a kernel.
const ownerVar = "UML_TEST_OWNER"

func TestMain(m *testing.M) {
	uml.Init()
	if os.Getenv(ownerVar) != "" {
		_, err := uml.Run(context.Background(), uml.Config{Command: []string{"/bin/sh", "-c", "echo up; sleep 1000"}, Output: os.Stdout})
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// needKernel skips where there is no User-Mode Linux; under REQUIRE_KERNEL=1 that is a failure.
func needKernel(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	if err := uml.Missing(); err != nil {
		if os.Getenv("REQUIRE_KERNEL") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func TestRunGivesOutputAndExitCode(t *testing.T) {
	needKernel(t)
	shared := t.TempDir()
	var out bytes.Buffer
	script := "uname -r; ip link add x0 type dummy && ip -o link show x0; ipset create s hash:ip timeout 3 && ipset list -n; " +
		"iptables -t raw -S; echo $GREETING >" + shared + "/file; touch /usr/of-the-host && echo wrote; exit 7"
	code, err := uml.Run(t.Context(), uml.Config{
		Command: []string{"/bin/sh", "-c", script}, Output: &out, Shared: []string{shared}, Env: []string{"GREETING=hello"},
	})
	if err != nil || code != 7 {
		t.Fatalf("got exit code %d, error %v, want 7 and none; output:\n%s", code, err, out.String())
	}
	for _, want := range []string{"x0", "-P PREROUTING ACCEPT", "Read-only"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	if b, err := os.ReadFile(filepath.Join(shared, "file")); err != nil || string(b) != "hello\n" {
		t.Errorf("the shared file holds %q, error %v", b, err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	needKernel(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	begin := time.Now()
	_, err := uml.Run(ctx, uml.Config{Command: []string{"/bin/sleep", "1000"}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %s to end", took)
	}
	if left := kernels(t); len(left) > 0 {
		t.Errorf("processes of the kernel are left: %q", left)
	}
}

// kernels lists the processes of kernels that this program booted.
func kernels(t *testing.T) []string {
	t.Helper()
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range cmdlines {
		if b, _ := os.ReadFile(f); bytes.Contains(b, []byte("init="+os.Args[0])) {
			out = append(out, f)
		}
	}
	return out
}

// TestKernelEndsWithItsOwner kills the program that booted a kernel.
func TestKernelEndsWithItsOwner(t *testing.T) {
	needKernel(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerVar+"=1", "TMPDIR="+t.TempDir()) // killed, it cannot remove its folder
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "up\n" {
		t.Fatalf("the kernel did not boot: %q, %v", line, err)
	}
	if len(kernels(t)) == 0 {
		t.Error("no process of a kernel is running")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for end := time.Now().Add(5 * time.Second); len(kernels(t)) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("processes of the kernel are left: %q", kernels(t))
		}
	}
}

func TestValidate(t *testing.T) {
	err := uml.Config{Command: []string{"sh"}, Dir: "/nowhere", Memory: 1, Timeout: -1}.Validate()
	for _, want := range []string{"absolute path", "/nowhere", "64", "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}
