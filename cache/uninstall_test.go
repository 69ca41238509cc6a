package main

import (
	"slices"
	"testing"
)

// TestUninstallArguments: what manifests/uninstall runs on each node removes everything, and then stays, so that the Pod is
// ready when the node is clean.
func TestUninstallArguments(t *testing.T) {
	pod := at(t, manifestOf(t, "uninstall/daemonset.yaml"), "spec", "template", "spec")
	for _, tt := range []struct {
		path []any
		stay bool
	}{{[]any{"initContainers", 1}, false}, {[]any{"containers", 0}, true}} {
		container := at(t, pod, tt.path...)
		var args []string
		for _, a := range at(t, container, "args").([]any) {
			args = append(args, a.(string))
		}
		if len(args) == 0 || args[0] != "cleanup" {
			t.Fatalf("%v runs %q, not cleanup", tt.path, args)
		}
		o, err := parse(args[1:]...)
		if err != nil || o.stay != tt.stay || o.interfaceName != "nodelocaldns" {
			t.Errorf("%q: %v, stay %t, interface %s", args, err, o.stay, o.interfaceName)
		}
		var caps []string
		for _, c := range at(t, container, "securityContext", "capabilities", "add").([]any) {
			caps = append(caps, c.(string))
		}
		if !slices.Equal(caps, []string{"NET_ADMIN", "NET_RAW"}) {
			t.Errorf("%v: capabilities %q", tt.path, caps)
		}
	}
}
