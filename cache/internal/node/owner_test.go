package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestKernelOwnerTable proves what the best guard level rests on: nobody else can take the table away, and the kernel
// removes it with the process.
func TestKernelOwnerTable(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		n := started(t, p.node(t, Config{}))
		if p.uml {
			// This kernel has no nf_tables families; that must be noticed, not assumed.
			if n.Level() != LevelSocket {
				t.Errorf("guard level %s, want %s", n.Level(), LevelSocket)
			}
			return
		}
		if n.Level() != LevelOwner {
			t.Fatalf("guard level %s, want %s", n.Level(), LevelOwner)
		}
		if !n.renew() {
			t.Fatal("the lease was not renewed")
		}
		table := func() string {
			out, _ := exec.Command("nft", "list", "table", "ip", ownerTable).CombinedOutput()
			return string(out)
		}
		before := table()
		for _, foreign := range []string{"nft flush ruleset", "nft delete table ip nodedns", "nft flush table ip nodedns"} {
			_ = exec.Command("sh", "-c", foreign).Run()
			if got := table(); !strings.Contains(got, "@lease") || !strings.Contains(got, "169.254.25.10") {
				t.Errorf("%s took away:\n%s\nbefore:\n%s", foreign, got, before)
			}
		}
		if err := n.TearDown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := table(); strings.Contains(got, "chain") {
			t.Errorf("the table is left:\n%s", got)
		}
		t.Run("ends with the process", func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), roleVar+"=owner")
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(table(), "flags owner") {
				t.Errorf("no table while the process lives:\n%s", table())
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			// A successor that starts in the same moment waits for it.
			o, err := newOwnerLease(owned{fam: v4, served: addrs("169.254.25.10"), port: 53, ttl: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// ownForever makes an owner table and keeps it until it is killed.
func ownForever() error {
	o, err := newOwnerLease(owned{fam: v4, served: addrs("169.254.25.10"), port: 53, ttl: 3 * time.Second})
	if err != nil {
		return err
	}
	if err := o.Renew(addrs("169.254.25.10"), 3*time.Second); err != nil {
		return err
	}
	fmt.Println("owned")
	time.Sleep(time.Minute)
	return o.Close()
}

func TestKernelLock(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		first, second := p.node(t, Config{}), p.node(t, Config{})
		if err := first.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := Cleanup(t.Context(), "", first.log)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
			t.Errorf("cleanup beside a running cache: %v, want an error that names it", err)
		}
		got := make(chan error)
		go func() { got <- second.Lock(t.Context()) }()
		select {
		case err := <-got:
			t.Fatalf("the second did not wait: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		if err := first.Unlock(); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if err := second.Unlock(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestKernelLockHeldByStrangers: the names that another user of the host network holds keep nobody from owning the node, and
// one owner stays one, also when the strangers have gone.
func TestKernelLockHeldByStrangers(t *testing.T) {
	inKernel(t, func(t *testing.T, p place) {
		stranger := exec.CommandContext(t.Context(), os.Args[0])
		stranger.Env = append(os.Environ(), roleVar+"=squatter")
		stranger.Stderr = t.Output()
		out, err := stranger.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := stranger.Start(); err != nil {
			t.Fatal(err)
		}
		gone := sync.OnceFunc(func() { _ = stranger.Process.Kill(); _ = stranger.Wait() })
		defer gone()
		if _, err := out.Read(make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		first, second := p.node(t, Config{}), p.node(t, Config{})
		if err := first.Lock(t.Context()); err != nil {
			t.Fatalf("beside a stranger: %v", err)
		}
		waits := func(when string) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := second.Lock(ctx); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
				t.Errorf("%s: the second owns the node too, or does not know why not: %v", when, err)
			}
		}
		waits("beside the stranger")
		gone()
		waits("with the stranger gone")
		if err := first.Unlock(); err != nil {
			t.Fatal(err)
		}
		if err := second.Lock(t.Context()); err != nil {
			t.Errorf("after the first: %v", err)
		}
	})
}
