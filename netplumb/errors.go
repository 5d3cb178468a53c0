package netplumb

import (
	"errors"
	"fmt"
)

// Errors a caller branches on.
var (
	// ErrNotFound is returned for a sandbox that has no namespace.
	ErrNotFound = errors.New("network not found")
	// ErrAddr is returned by Up when the address cannot be used on this host
	// now: another sandbox has it, or the host's own networks have come to
	// overlap its block. FreeAddr gives another one.
	ErrAddr = errors.New("sandbox address is not usable")
	// ErrExhausted is returned by FreeAddr when no address is left, and by Up
	// when the bridge has no port left (Linux allows 1023).
	ErrExhausted = errors.New("no room for another sandbox network")
	// ErrClosed is returned by a Plumber after Close.
	ErrClosed = errors.New("plumber is closed")
)

// PortError says that a host port cannot be forwarded.
type PortError struct {
	Port    Port
	Sandbox string // id of the sandbox of this instance that has it, if it is one
	Reason  string // e.g. "a process of the host listens on it"
}

func (e *PortError) Error() string {
	return fmt.Sprintf("forward host port %s: %s", e.Port, e.Reason)
}
