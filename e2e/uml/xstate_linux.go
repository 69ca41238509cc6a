package uml

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/cpu"
)

//go:embed xstate/xstate.c
var xstateSource []byte

// Preload prepares what a User-Mode Linux kernel needs on this processor and gives the environment to start linux.uml
// with, empty if nothing is needed. It writes to folder, which must stay while the kernel runs.
//
// Kernels before 6.14 know 2696 bytes of vector state; with AMX there are more, and the host refuses the short area.
func Preload(ctx context.Context, folder string) ([]string, error) {
	if !cpu.X86.HasAMXTile {
		return nil, nil
	}
	source, library := filepath.Join(folder, "xstate.c"), filepath.Join(folder, "xstate.so")
	if err := os.WriteFile(source, xstateSource, 0o600); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, compiler, "-O2", "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("compiling what User-Mode Linux needs on a processor with AMX: %w\n%s", err, out)
	}
	return []string{"LD_PRELOAD=" + library}, nil
}

// compiler is only needed on processors with AMX.
const compiler = "gcc"

// missingCompiler says whether Preload would fail for lack of a compiler.
func missingCompiler() error {
	if !cpu.X86.HasAMXTile {
		return nil
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return fmt.Errorf("no %s: User-Mode Linux needs a small library compiled on processors with AMX; install the package gcc and libc6-dev", compiler)
	}
	return nil
}
