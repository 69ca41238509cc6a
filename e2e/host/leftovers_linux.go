package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Leftovers returns the children of this process that are still there. Call it after everything was stopped: links,
// namespaces, mounts and cgroups of the test bed exist only inside its children.
func Leftovers() error {
	var out []error
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended meanwhile
		}
		// "pid (name) state parent …"; the name may hold anything, so count from its closing parenthesis.
		name := strings.LastIndexByte(string(text), ')') + 1
		if fields := strings.Fields(string(text[name:])); len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			out = append(out, fmt.Errorf("left behind: process %s", text[:name]))
		}
	}
	return errors.Join(out...)
}
