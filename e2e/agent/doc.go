// Package agent runs commands inside a node of the test bed on behalf of the test outside.
//
// The server runs in the node and knows two kinds of process: a command, whose output streams back and whose exit code
// is the result, and a daemon, which has a name, a log, and lives until it is stopped. It trusts whoever reaches it:
// only the namespace of the test cluster does.
//
//	c := agent.NewClient("172.30.0.11:2222", dial)
//	out, err := c.Run(ctx, "iptables-save", "-t", "raw")
//	err = c.StartDaemon(ctx, agent.Daemon{Name: "kubelet", Args: []string{"kubelet", "--v=2"}})
package agent

// Command is the body of POST /run.
type Command struct {
	// Args are the program, looked up in the node's PATH, and its arguments.
	Args []string
	// Stdin is what the program reads.
	Stdin string
}

// Daemon is the body of POST /daemons: it starts the daemon, after stopping the one of that name.
type Daemon struct {
	Name string
	Args []string
	// Log is the file for its output, on the node.
	Log string
}

// Signal is the body of POST /signal: it sends a signal by a system call of the agent's own. A kill program would first
// have to start, which takes some 50 ms of the node's only processor, and whoever is killed would have been starved
// before.
type Signal struct {
	Pid    int
	Signal int
}

// Sent is the answer.
type Sent struct {
	// UnixNano is when the signal was sent, by the node's clock.
	UnixNano int64
}

// exitCode is the trailer with the command's exit code; -1 stands for one that could not be started.
const exitCode = "X-Exit-Code"
