package corefile

import _ "embed"

//go:embed reference.corefile
var reference string

// Reference returns the Corefile that is used when none is given: in form and meaning the one that Kubernetes ships for its
// node-local cache, placeholders included.
func Reference() string { return reference }
