package archive

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// addDynamic puts programs or shared objects at their own paths into files, with every library they need, directly or
// through another, and the loader.
func addDynamic(files map[string]string, paths ...string) error {
	for _, p := range paths {
		to := strings.TrimPrefix(p, "/")
		if _, there := files[to]; there {
			continue
		}
		files[to] = p
		libraries, loader, err := needs(p)
		if err != nil {
			return err
		}
		if loader != "" {
			files[strings.TrimPrefix(loader, "/")] = loader
		}
		for _, l := range libraries {
			found, err := library(l)
			if err != nil {
				return fmt.Errorf("looking for what %s needs: %w", p, err)
			}
			if err := addDynamic(files, found); err != nil {
				return err
			}
		}
	}
	return nil
}

func needs(path string) (libraries []string, loader string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("reading %s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	libraries, err = f.ImportedLibraries()
	if err != nil {
		return nil, "", fmt.Errorf("reading what %s needs: %w", path, err)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			return nil, "", fmt.Errorf("reading the loader of %s: %w", path, err)
		}
		loader = strings.TrimRight(string(b), "\x00")
	}
	return libraries, loader, nil
}

// library finds a shared library in Debian's folders for this architecture.
func library(name string) (string, error) {
	found, err := filepath.Glob(filepath.Join("/usr/lib/*-linux-gnu*", name))
	if err == nil && len(found) > 0 {
		return found[0], nil
	}
	if p := filepath.Join("/usr/lib", name); fileExists(p) {
		return p, nil
	}
	return "", errors.Join(fmt.Errorf("no library %s below /usr/lib", name), err)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
