package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"
)

// tables is what the node room needs of iptables, for one family. A fake stands in for it in tests.
type tables interface {
	// List gives the rules of chains of a table as iptables -S prints them, each chain's in their order. There may be
	// lines of other chains among them.
	List(table string, chains []string) ([]string, error)
	// Commit makes changes of one table, all or none of them. A deletion takes the first rule that reads as its spec, and
	// it is an error if there is none.
	Commit(table string, changes []change) error
	// Try says whether the kernel and the command take the rule, without any packet meeting it.
	Try(table string, spec ...string) error
	// EndTry removes what a Try that was killed left behind; no error if there is nothing.
	EndTry(table string) error
	// Generation changes whenever rules of the table change; some other changes may change it too. It costs a system
	// call, no command.
	Generation(table string) (string, error)
}

// scratch is the chain in which Try tries rules. Nothing jumps to it.
const scratch = "NODEDNS-TRY"

// command is tables through an iptables command of one flavour and family.
type command struct {
	*iptables.IPTables
	path    string
	restore string // path of the command that makes many changes at once
	wait    int    // seconds for the xtables lock
	fam     family
	flavour Flavour
}

// newCommand takes the iptables command at path.
func newCommand(path string, fam family, flavour Flavour, wait time.Duration) (*command, error) {
	proto := iptables.ProtocolIPv4
	if fam == v6 {
		proto = iptables.ProtocolIPv6
	}
	restore, err := exec.LookPath(path + "-restore")
	if err != nil {
		return nil, err
	}
	seconds := int(max(wait, time.Second) / time.Second)
	ipt, err := iptables.New(iptables.IPFamily(proto), iptables.Path(path), iptables.Timeout(seconds))
	if err != nil {
		return nil, fmt.Errorf("running %s: %w", path, err)
	}
	return &command{IPTables: ipt, path: path, restore: restore, wait: seconds, fam: fam, flavour: flavour}, nil
}

// commandLimit is how long a command may take besides waiting for the lock: one that hangs must not stop the keeper.
const commandLimit = 30 * time.Second

func (c *command) limit() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), commandLimit+time.Duration(c.wait)*time.Second)
}

// List implements tables. What is cheaper differs: the legacy command always fetches the whole table, of which one listing
// is enough; the other one fetches single chains, which matters with tens of thousands of foreign rules.
func (c *command) List(table string, chains []string) ([]string, error) {
	if c.flavour == NFT {
		var out []string
		for _, chain := range chains {
			lines, err := c.IPTables.List(table, chain)
			if err != nil {
				return nil, err
			}
			out = append(out, lines...)
		}
		return out, nil
	}
	var stdout, stderr bytes.Buffer
	ctx, cancel := c.limit()
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, "-t", table, "-S", "--wait", strconv.Itoa(c.wait))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running %s for table %s: %w: %s", c.path, table, err, strings.TrimSpace(stderr.String()))
	}
	return strings.Split(strings.TrimSpace(stdout.String()), "\n"), nil
}

// Commit implements tables. One command for a table means one lock and one exchange of the table with the kernel, however
// many rules there are, and no moment at which only some of them are there.
func (c *command) Commit(table string, changes []change) error {
	lines := make([]string, len(changes))
	for i, ch := range changes {
		lines[i] = ch.String()
	}
	return c.restoreLines(table, lines...)
}

func (c *command) restoreLines(table string, lines ...string) error {
	ctx, cancel := c.limit()
	defer cancel()
	cmd := exec.CommandContext(ctx, c.restore, "--noflush", "--wait", strconv.Itoa(c.wait))
	cmd.Stdin = strings.NewReader("*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s for table %s: %w: %s", c.restore, table, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Try implements tables. The chain is emptied with its declaration, so that one left behind does no harm.
func (c *command) Try(table string, spec ...string) error {
	if err := c.restoreLines(table, ":"+scratch+" - [0:0]", "-A "+scratch+joinWords(spec)); err != nil {
		return err // all or nothing: there is no chain either
	}
	return c.restoreLines(table, "-F "+scratch, "-X "+scratch)
}

// EndTry implements tables.
func (c *command) EndTry(table string) error {
	ok, err := c.ChainExists(table, scratch)
	if err != nil || !ok {
		return err
	}
	return c.ClearAndDeleteChain(table, scratch)
}

// Generation implements tables.
func (c *command) Generation(table string) (string, error) {
	if c.flavour == NFT {
		return nftGeneration()
	}
	return legacyGeneration(c.fam, table)
}

// lockBusy says whether err means that somebody else holds the xtables lock.
func lockBusy(err error) bool {
	if err == nil {
		return false
	}
	s := err.Error()
	return strings.Contains(s, "xtables lock") || strings.Contains(s, "Resource temporarily unavailable")
}

// noVerdict says whether err tells nothing about what this kernel can do: the command did not get as far as asking it.
func noVerdict(err error) bool {
	return lockBusy(err) || err != nil && strings.Contains(err.Error(), "lock file")
}

// unsupported says whether err means that the kernel has no such thing as was to be removed.
func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT)
}

// gone says whether err means that the table or chain is not there.
func gone(err error) bool {
	if err == nil {
		return false
	}
	var e *iptables.Error
	return errors.As(err, &e) && e.IsNotExist() || strings.Contains(err.Error(), "does not exist") ||
		// So says iptables-nft 1.8.9 of a chain that is not there.
		strings.Contains(err.Error(), "is incompatible, use 'nft' tool")
}

// explain adds to an error of iptables what to do about it.
func explain(err error) error {
	if err == nil {
		return nil
	}
	s := err.Error()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: install iptables into the image, or switch the rules off", err)
	case strings.Contains(s, "you must be root"), strings.Contains(s, "Operation not permitted"), strings.Contains(s, "Permission denied"):
		return fmt.Errorf("%w: the capabilities NET_ADMIN and, for legacy iptables, NET_RAW are needed", err)
	case strings.Contains(s, "can't open lock file"):
		return fmt.Errorf("%w: mount the host's /run/xtables.lock, a file (hostPath type FileOrCreate), writable", err)
	case strings.Contains(s, "Table does not exist"), strings.Contains(s, "can't initialize iptables table"):
		return fmt.Errorf("%w: this kernel lacks the table; load its module on the host", err)
	}
	return err
}

// patiently calls do until it succeeds, fails for another reason than the xtables lock, or ctx ends. The pauses grow.
func (n *Node) patiently(ctx context.Context, do func() error) error {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := do()
		if !lockBusy(err) {
			return explain(err)
		}
		n.m.lockWaits.Inc()
		select {
		case <-ctx.Done():
			return fmt.Errorf("giving up for now: %w", explain(err))
		case <-time.After(pause):
		}
	}
}
