package node

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodedns/nodedns/e2e/uml"
)

// kernels are the User-Mode Linux kernels that TestUML boots, each with the tests that run in it: those for which another,
// older kernel, dummy links or IPVS make a difference. They share the host's processors: -parallel
// says how many run at a time, and only alone does none get in the way of another's figures.
func kernels() map[string]string {
	all := map[string]string{
		"parts":          "^Test(Kernel(Contract|Golden|OwnerTable)|N01|N11|N12)",
		"kube-proxy":     "^TestKernelKubeProxy$",
		"capabilities":   "^TestKernelCapabilities$/^ipvs-0$",
		"surroundings-0": "^TestKernelSurroundings$/^ipvs-0$",
		"surroundings-1": "^TestKernelSurroundings$/^ipvs-1$",
	}
	// The iptables mode by its legacy commands runs on the host's kernel as well, so here it is part of the full matrix only.
	modes := []string{"ipvs"}
	if full() {
		modes = append(modes, "iptables")
	}
	for _, mode := range modes {
		for lane := range failoverLanes {
			name := mode + "-" + string(rune('0'+lane))
			all[name] = "^TestKernelFailover$/^" + name + "$"
		}
	}
	// NODE_TEST_ONLY takes one kernel with these tests instead, for work on them.
	if only := os.Getenv("NODE_TEST_ONLY"); only != "" {
		return map[string]string{"only": only}
	}
	return all
}

// TestUML runs the kernel tests once more, inside User-Mode Linux.
func TestUML(t *testing.T) {
	if os.Getenv(umlVar) != "" || os.Getenv(placeVar) != "" {
		t.Skip("this is the inside of it")
	}
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	needRoot(t)
	if err := uml.Missing(); err != nil {
		skip(t, err.Error())
	}
	folder := staged(t)
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range kernels() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inUML(t, folder, dir, run)
		})
	}
}

func isFolder(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// inUML boots a kernel and runs tests of this program in it. dir is this package's folder.
func inUML(t *testing.T, folder, dir, run string) {
	t.Helper()
	args := []string{filepath.Join(folder, stagedTest), "-test.run=" + run, "-test.v", "-test.timeout=14m"}
	if *update {
		args = append(args, "-update")
	}
	env := []string{umlVar + "=1", stageVar + "=" + folder}
	for _, name := range []string{"NODE_TEST_SUB", matrixVar, kubeProxyVar, "REQUIRE_KERNEL"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	shared := []string{dir}
	// The kernel covers /tmp, where the project may be.
	if programs := filepath.Dir(kubeProxyPath(t)); isFolder(programs) {
		shared = append(shared, programs)
	}
	var out bytes.Buffer
	code, err := uml.Run(t.Context(), uml.Config{
		Command: args, Dir: dir, Env: env, Output: &out, Timeout: 14 * time.Minute, Memory: 1024, Shared: shared,
	})
	if err != nil || code != 0 {
		t.Fatalf("inside User-Mode Linux: exit code %d, %v\n%s", code, err, out.String())
	}
	if bytes.Contains(out.Bytes(), []byte("--- SKIP")) {
		skip(t, out.String())
	}
	t.Logf("%s", out.String())
}
