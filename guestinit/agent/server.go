package agent

import (
	"net"
)

// Server answers the host.
type Server struct{ o Options }

// New returns a server that waits for Serve.
func New(o Options) *Server { return &Server{o: o} }

// Serve accepts connections from ln until Close. It may be called for several
// listeners.
func (s *Server) Serve(ln net.Listener) error { return nil }

// Close stops accepting, drops all connections, ends the processes of streams
// that are still attached, and waits. Idempotent.
func (s *Server) Close() error { return nil }
