package sietch

import (
	"context"
	"net/http"

	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// Exec runs a command to its end. A failed command is no error: see
// [ExecResult.ExitCode]. Of each stream 16 MiB are kept.
func (s *Sandbox) Exec(ctx context.Context, args ...string) (ExecResult, error) {
	return s.ExecWith(ctx, ExecRequest{Args: args})
}

// ExecWith is Exec with all options.
func (s *Sandbox) ExecWith(ctx context.Context, q ExecRequest) (ExecResult, error) {
	return wire.Answer[ExecResult](s.c.api.Exec(ctx, s.Name, nil, q))
}

// ExitStatus says how a command ended, as a shell does: 126 not executable, 127
// not found, 124 timed out, 128+n ended by signal n.
type ExitStatus = wire.ExitStatus

// ExecStream is a running command.
type ExecStream = wire.Exec

// ExecStream runs a command whose output comes as it is written. When ctx ends,
// or the stream is closed, the command and all it started are ended.
//
// One goroutine may read ([ExecStream.Copy], [ExecStream.Next]) while another
// one writes.
func (s *Sandbox) ExecStream(ctx context.Context, q ExecStart) (*ExecStream, error) {
	header := http.Header{}
	s.c.authorize(header)
	return wire.StartExec(ctx, wire.Server{URL: s.c.url, HTTP: s.c.http, Header: header}, s.Name, q)
}
