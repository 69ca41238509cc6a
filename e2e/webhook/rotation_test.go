package webhook_test

import "github.com/nodedns/nodedns/e2e/host"

func hostTail(path string, lines int) string { return host.Tail(path, lines) }
