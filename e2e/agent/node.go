package agent

import "path/filepath"

// Paths on a node. Everything of ours is below /run, a tmpfs, wherever the repository and the run folder are outside.
const (
	// Bin holds the programs that the test bed built.
	Bin = "/run/bed/bin"
	// Images holds folders of archives of container images, numbered from 0 as in Node.Images.
	Images = "/run/bed/images"
	// Shared is the node's part of the run folder: configuration in, logs out.
	Shared = "/run/bed/shared"
	// Links holds programs that must come first in PATH.
	Links = "/run/bed/sbin"
	// Path is the PATH of everything on a node.
	Path = Links + ":" + Bin + ":/usr/sbin:/usr/bin:/sbin:/bin"
)

// Port is the agent's.
const Port = 2222

// Node tells a node what it is. The test writes it as node.json into the folder that the node sees as Shared.
type Node struct {
	Name string
	// Bin and Images are folders outside.
	Bin    string
	Images []string
	// Address and Gateway are those of the link vec0; Address with its prefix length.
	Address string
	Gateway string
	// Routes are destination → gateway, for the Pods of the other nodes.
	Routes map[string]string
	// Nameserver goes into /etc/resolv.conf.
	Nameserver string
	// Modules are kernel modules to load.
	Modules []string
}

// ConfigFile is where Node is found in the shared folder.
func ConfigFile(shared string) string { return filepath.Join(shared, "node.json") }
