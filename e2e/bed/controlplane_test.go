package bed_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/bedtest"
	"github.com/nodedns/nodedns/e2e/console"
)

// Two control planes at once do not see each other; a stopped one leaves no process and no folder.
func TestControlPlanes(t *testing.T) {
	t.Parallel()
	one := bedtest.ControlPlane(t, bed.Config{Name: "one"})
	two := bedtest.ControlPlane(t, bed.Config{Name: "two", APIServerOnly: true})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	client, err := one.Client()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating a Pod: %v", err)
	}
	other, err := two.Client()
	if err != nil {
		t.Fatal(err)
	}
	pods, err := other.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 0 {
		t.Errorf("the second control plane lists %d Pods, error %v", len(pods.Items), err)
	}
	published(t, two)
	out, err := exec.CommandContext(t.Context(), one.Program("kubectl"), "--kubeconfig="+one.Kubeconfig(), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Server Version: v1.37.2") {
		t.Errorf("kubectl version: %v\n%s", err, out)
	}
	folder := one.Workspace().Path()
	one.Stop()
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("the run folder %s is still there: %v", folder, err)
	}
	if left := usersOf(t, folder); len(left) > 0 {
		t.Errorf("processes of the stopped control plane: %q", left)
	}
}

// published: what listens on the host can be called from inside the namespace.
func published(t *testing.T, cp *bed.ControlPlane) {
	t.Helper()
	l, err := cp.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	address := strings.TrimPrefix(cp.RESTConfig().Host, "https://") // on the host
	inside, err := cp.Publish(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := cp.Namespace().Dial(t.Context(), "tcp", inside)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// A start that is broken off stops what it had started.
func TestStartBrokenOff(t *testing.T) {
	t.Parallel()
	bedtest.Build(t) // so that the deadline meets a start
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if cp, err := bed.StartControlPlane(ctx, bed.Config{Name: "broken", Console: console.New(t.Output())}); err == nil {
		cp.Stop()
		t.Fatal("a control plane was up within half a second: it was not broken off")
	}
	for _, dir := range []string{"/dev/shm", os.TempDir()} {
		if left, _ := filepath.Glob(filepath.Join(dir, "nodedns-bed-broken-*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	if left := usersOf(t, "nodedns-bed-broken-"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// usersOf lists the command lines that name folder.
func usersOf(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(b), folder) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}
