package bed_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/bedtest"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
)

// holdVar makes the test program start a control plane, print its run folder, and hold it until it is killed.
const holdVar = "BED_TEST_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(holdVar) != "" {
		if err := hold(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func hold() error {
	cp, err := bed.StartControlPlane(context.Background(), bed.Config{Name: "held", APIServerOnly: true})
	if err != nil {
		return err
	}
	fmt.Println(cp.Workspace().Path())
	_, err = io.Copy(io.Discard, os.Stdin) // until killed, or until the test that started this is gone
	cp.Stop()
	return err
}

// A program that is killed with its control plane up leaves no process, and the next run removes its folder.
func TestKilled(t *testing.T) {
	t.Parallel()
	bedtest.Build(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), holdVar+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("the program that holds a control plane said nothing: %v", cmd.Wait())
	}
	folder := lines.Text()
	if len(usersOf(t, folder)) < 2 {
		t.Fatalf("processes of the held control plane: %q", usersOf(t, folder))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	err = host.Until(t.Context(), "the children to end", 10*time.Second, func(context.Context) error {
		if left := usersOf(t, folder); len(left) > 0 {
			return fmt.Errorf("still running: %q", left)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	host.Sweep(console.New(t.Output()))
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("the folder %s is still there: %v", folder, err)
	}
}
