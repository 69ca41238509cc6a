package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodedns/nodedns/e2e/resolver"
)

// Programs of the stage.
const (
	stagedTest  = "node.test"
	stagedCache = "nodedns-cache"
)

// stageDir is a folder for the programs that tests run, at a path that User-Mode Linux sees too: it covers /tmp, where go
// test puts a test program.
func stageDir() string { return filepath.Join("/var/tmp", fmt.Sprintf("node-test-%d", os.Getpid())) }

// stage builds them, once a test program.
var stage = sync.OnceValue(func() error {
	dir := stageDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, stagedTest), self, 0o755); err != nil {
		return err
	}
	// With the tag, questions for certain names make a worker hang.
	out, buildErr := exec.Command("go", "build", "-tags", "nodedns_faults", "-o", filepath.Join(dir, stagedCache), "../..").CombinedOutput()
	if buildErr != nil {
		buildErr = fmt.Errorf("building the cache: %w\n%s", buildErr, out)
	}
	_, err = resolver.Build(context.Background(), dir)
	return errors.Join(buildErr, err)
})

// staged gives the folder with the programs.
func staged(t *testing.T) string {
	t.Helper()
	if err := stage(); err != nil {
		t.Fatal(err)
	}
	return stageDir()
}

// program is the path of a program of the stage, in a process that was told of it.
func program(name string) string { return filepath.Join(os.Getenv(stageVar), name) }
