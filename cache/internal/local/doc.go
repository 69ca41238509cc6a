// Package local makes answers on the spot: from a hosts file, from templates, and whoami.
//
// Each answerer is handed a packed query and returns a packed reply or nothing, in which
// case the next in line is asked. They are not quick, and need not be: what they say is
// cached like any answer, unless it depends on the client. They own no sockets and no
// goroutines.
package local
