package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// tryPID returns the error that writePID would give later.
func tryPID(file string) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".pid-*")
	if err != nil {
		return fmt.Errorf("-pidfile: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// writePID writes the process ID where -pidfile says, in one step, so that nobody reads half of it.
func writePID(file string) error {
	tmp := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".tmp")
	if err := os.WriteFile(tmp, fmt.Appendf(nil, "%d\n", os.Getpid()), 0o644); err != nil { //nolint:gosec // others read it
		return fmt.Errorf("writing the process ID: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("writing the process ID: %w", err)
	}
	return nil
}
