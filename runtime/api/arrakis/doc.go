// Package arrakis is what Arrakis' verbs do, as calls of [runtime.Engine]: a
// start that boots, starts or resumes, snapshots that are tags, command lines,
// and where relative paths begin.
//
// It owns these meanings, for the REST routes and the MCP tools that bear
// Arrakis' names alike. It leaves both wires to its callers: no function here
// knows of HTTP or of MCP, and every error is one of the engine's kinds.
//
// Everything is safe for concurrent use; there is no state.
package arrakis

import "github.com/sietch-dev/sietch/runtime"

func usage(message, hint string) error {
	return &runtime.Error{Kind: runtime.ErrUsage, Message: message, Hint: hint}
}

func notFound(message, hint string) error {
	return &runtime.Error{Kind: runtime.ErrNotFound, Message: message, Hint: hint}
}

func busy(message, hint string) error {
	return &runtime.Error{Kind: runtime.ErrBusy, Message: message, Hint: hint}
}
