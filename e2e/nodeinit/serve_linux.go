package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodedns/nodedns/e2e/agent"
)

// serve sets the node up and serves the agent.
func serve(folder string) error {
	// First of all: the folder may lie below /dev, /run or another place that is covered by now or will be.
	if err := mountAll(
		mount{"run", "/run", "tmpfs", "mode=755", 0}, mount{"none", agent.Shared, "hostfs", folder, 0},
	); err != nil {
		return err
	}
	text, err := os.ReadFile(agent.ConfigFile(agent.Shared))
	if err != nil {
		return fmt.Errorf("reading the node's configuration: %w", err)
	}
	var n agent.Node
	if err := json.Unmarshal(text, &n); err != nil {
		return fmt.Errorf("reading the node's configuration: %w", err)
	}
	for name, value := range map[string]string{"PATH": agent.Path, "HOME": "/root", "TMPDIR": "/tmp"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte(n.Name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	begin := time.Now()
	for _, step := range []struct {
		what string
		do   func(agent.Node) error
	}{
		{"mounts", mounts}, {"groups", cgroups}, {"files", files}, {"modules", modules}, {"network", network}, {"settings", settings},
	} {
		if err := step.do(n); err != nil {
			return fmt.Errorf("setting up the %s: %w", step.what, err)
		}
		fmt.Printf("%s done after %s\n", step.what, time.Since(begin).Round(time.Millisecond))
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", agent.Port))
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	s := &http.Server{Handler: agent.NewServer(), ReadHeaderTimeout: 10 * time.Second}
	return s.Serve(l)
}
