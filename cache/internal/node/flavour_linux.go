package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// kernel is everything the node room needs of the host. A fake stands in for it in tests.
type kernel interface {
	links
	sets
	flows
	endpointReader
	// Tables gives the iptables of a family: of the forced flavour, or of the one that kube-proxy chose.
	Tables(fam family, force Flavour, wait time.Duration) (tables, Flavour, error)
	// InUse says whether a family has tables of that flavour at all. Cleanup asks, since looking into them makes them.
	InUse(fam family, f Flavour) bool
	// Owner makes the owner table of a family; an error where the kernel has none.
	Owner(spec owned) (lease, error)
}

// host is kernel on the network namespace this process is in.
type host struct {
	kernelLinks
	kernelSets
	kernelFlows
	proxyRules
}

// Owner implements kernel.
func (host) Owner(spec owned) (lease, error) {
	o, err := newOwnerLease(spec)
	if err != nil {
		return nil, err // not o: a nil pointer in the interface would not be nil
	}
	return o, nil
}

// InUse implements kernel.
func (host) InUse(fam family, f Flavour) bool {
	if f == NFT {
		return nftInUse(fam)
	}
	names := "/proc/net/ip_tables_names"
	if fam == v6 {
		names = "/proc/net/ip6_tables_names"
	}
	b, err := os.ReadFile(names)
	return err == nil && len(b) > 0
}

// hintChains are chains that kubelet and kube-proxy keep in the mangle table so that others find the flavour they use.
func hintChains() []string {
	return []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-PROXY-CANARY"}
}

// Tables implements kernel.
func (host) Tables(fam family, force Flavour, wait time.Duration) (tables, Flavour, error) {
	if force != AutoFlavour {
		c, err := openCommand(fam, force, wait)
		if err != nil {
			return nil, force, err
		}
		return c, force, nil
	}
	var usable []*command
	var errs []error
	for _, f := range []Flavour{NFT, Legacy} {
		c, err := openCommand(fam, f, wait)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// The listing fails where the kernel does not have the flavour. A busy lock is no verdict.
		if _, err := c.List("filter", []string{"INPUT"}); err != nil && !lockBusy(err) {
			errs = append(errs, err)
			continue
		}
		if c.hinted() {
			return c, f, nil
		}
		usable = append(usable, c)
	}
	if len(usable) == 0 {
		return nil, "", fmt.Errorf("no iptables flavour works for %s: %w", fam, errors.Join(errs...))
	}
	// No hint: what the plain command of this image does, since whoever built it has decided; else the newer one.
	if path, err := exec.LookPath(plainCommand(fam)); err == nil {
		def, err := flavourOf(path)
		for _, c := range usable {
			if err == nil && c.flavour == def {
				return c, def, nil
			}
		}
	}
	return usable[0], usable[0].flavour, nil
}

// hinted says whether kubelet or kube-proxy left a hint in this flavour.
func (c *command) hinted() bool {
	for _, chain := range hintChains() {
		if ok, err := c.ChainExists("mangle", chain); err == nil && ok {
			return true
		}
	}
	return false
}

func plainCommand(fam family) string {
	if fam == v6 {
		return "ip6tables"
	}
	return "iptables"
}

// openCommand finds the command of a flavour: under its own name, or under the plain name if that is this flavour.
func openCommand(fam family, f Flavour, wait time.Duration) (*command, error) {
	plain := plainCommand(fam)
	named := plain + "-" + string(f)
	if path, err := exec.LookPath(named); err == nil {
		return newCommand(path, fam, f, wait)
	}
	path, err := exec.LookPath(plain)
	if err != nil {
		return nil, fmt.Errorf("neither %s nor %s is there: %w", named, plain, err)
	}
	is, err := flavourOf(path)
	if err != nil {
		return nil, err
	}
	if is != f {
		return nil, fmt.Errorf("%s is of flavour %s, and there is no %s: %w", path, is, named, exec.ErrNotFound)
	}
	return newCommand(path, fam, f, wait)
}

// flavourOf asks an iptables command what it is.
func flavourOf(path string) (Flavour, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("running %s --version: %w", path, err)
	}
	if strings.Contains(string(out), "nf_tables") {
		return NFT, nil
	}
	return Legacy, nil // versions before 1.8 knew nothing else and do not say
}
