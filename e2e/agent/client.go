package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// DialFunc connects to the node, as in net.Dialer.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// A Client talks to the agent of one node.
type Client struct {
	base string
	http *http.Client
}

// ExitError is the error of a command that ran and failed.
type ExitError struct {
	Code   int
	Args   []string
	Output string
}

// Error implements error.
func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: exit code %d: %s", strings.Join(e.Args, " "), e.Code, strings.TrimSpace(e.Output))
}

// NewClient returns a client for the agent at address.
func NewClient(address string, dial DialFunc) *Client {
	return &Client{
		base: "http://" + address,
		http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
	}
}

// Ready returns nil when the agent answers.
func (c *Client) Ready(ctx context.Context) error {
	resp, err := c.do(ctx, http.MethodGet, "/ready", nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Run runs a command and returns what it wrote, standard error included. The error is an *ExitError where the command
// ran and failed.
func (c *Client) Run(ctx context.Context, args ...string) (string, error) {
	return c.RunCommand(ctx, Command{Args: args})
}

// Shell runs a script with sh.
func (c *Client) Shell(ctx context.Context, script string) (string, error) {
	return c.Run(ctx, "sh", "-ec", script)
}

// RunCommand is Run with all that a command may have.
func (c *Client) RunCommand(ctx context.Context, cmd Command) (string, error) {
	resp, err := c.do(ctx, http.MethodPost, "/run", cmd)
	if err != nil {
		return "", fmt.Errorf("running %s: %w", cmd.Args[0], err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return string(out), fmt.Errorf("running %s: %w", cmd.Args[0], err)
	}
	var code int
	if _, err := fmt.Sscan(resp.Trailer.Get(exitCode), &code); err != nil {
		return string(out), fmt.Errorf("running %s: no exit code: %w", cmd.Args[0], err)
	}
	if code != 0 {
		return string(out), &ExitError{Code: code, Args: cmd.Args, Output: string(out)}
	}
	return string(out), nil
}

// Signal sends a signal to a process and returns when it was sent, by the node's clock.
func (c *Client) Signal(ctx context.Context, pid int, signal syscall.Signal) (time.Time, error) {
	resp, err := c.do(ctx, http.MethodPost, "/signal", Signal{Pid: pid, Signal: int(signal)})
	if err != nil {
		return time.Time{}, fmt.Errorf("signalling process %d: %w", pid, err)
	}
	defer resp.Body.Close()
	var sent Sent
	if err := json.NewDecoder(resp.Body).Decode(&sent); err != nil {
		return time.Time{}, fmt.Errorf("signalling process %d: %w", pid, err)
	}
	return time.Unix(0, sent.UnixNano), nil
}

// StartDaemon starts a daemon, after stopping the one of that name.
func (c *Client) StartDaemon(ctx context.Context, d Daemon) error {
	resp, err := c.do(ctx, http.MethodPost, "/daemons", d)
	if err != nil {
		return fmt.Errorf("starting %s: %w", d.Name, err)
	}
	return resp.Body.Close()
}

// StopDaemon ends a daemon and returns when it is gone.
func (c *Client) StopDaemon(ctx context.Context, name string) error {
	resp, err := c.do(ctx, http.MethodDelete, "/daemons/"+name, nil)
	if err != nil {
		return fmt.Errorf("stopping %s: %w", name, err)
	}
	return resp.Body.Close()
}

// do sends a request. Its caller closes the body.
func (c *Client) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		reason, err := io.ReadAll(resp.Body)
		return nil, errors.Join(fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(reason)), err)
	}
	return resp, nil
}
