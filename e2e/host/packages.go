package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/nodedns/nodedns/e2e/console"
)

// A Package is a Debian package that something here needs.
type Package struct {
	Name string
	// Why tells a person what it is for.
	Why string
}

// Install installs those of the packages that are missing, and says which and why.
func Install(ctx context.Context, con *console.Console, want ...Package) error {
	missing := missing(ctx, want)
	if len(missing) == 0 {
		return nil
	}
	names := make([]string, 0, len(missing))
	for _, p := range missing {
		names = append(names, p.Name)
		con.Step("needs the Debian package %s: %s", p.Name, p.Why)
	}
	list := strings.Join(names, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing Debian packages, and only root can install them; run: apt-get install %s", list)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing %s, and there is no apt-get here: the test bed runs on Debian 12 or later", list)
	}
	done := con.Long("installing "+list, 0)
	err := aptInstall(ctx, names)
	done(err)
	return err
}

// missing asks dpkg, not PATH: a program of the right name may be someone's own build.
func missing(ctx context.Context, want []Package) []Package {
	var out []Package
	for _, p := range want {
		b, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", p.Name).Output()
		if err != nil || string(b) != "installed" {
			out = append(out, p)
		}
	}
	return out
}

// aptInstall tries with the package lists as they are first: fetching them takes longer than most installations.
func aptInstall(ctx context.Context, names []string) error {
	// Several test programs may find the same package missing at once: wait for the other's lock.
	args := append([]string{"-qq", "-y", "-o", "DPkg::Lock::Timeout=300", "--no-install-recommends", "install"}, names...)
	if _, err := apt(ctx, args); err == nil {
		return nil
	}
	if out, err := apt(ctx, []string{"-qq", "-o", "DPkg::Lock::Timeout=300", "update"}); err != nil {
		return fmt.Errorf("fetching Debian's package lists: %w\n%s", err, out)
	}
	if out, err := apt(ctx, args); err != nil {
		return fmt.Errorf("installing %s: %w\n%s", strings.Join(names, " "), err, out)
	}
	return nil
}

func apt(ctx context.Context, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
