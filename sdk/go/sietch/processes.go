package sietch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// Requests and answers, as the API's document has them.
type (
	ProcessInfo    = client.Process
	ProcessRequest = client.ProcessRequest
)

// Process is a background process of a sandbox. It goes on when its caller or the
// server leaves, and is part of commits and forks.
type Process struct {
	ID string

	s *Sandbox
}

// StartProcess starts a command in the background.
func (s *Sandbox) StartProcess(ctx context.Context, q ProcessRequest) (*Process, error) {
	p, err := wire.Answer[ProcessInfo](s.c.api.StartProcess(ctx, s.Name, nil, q))
	if err != nil {
		return nil, err
	}
	return s.Process(p.Id), nil
}

// Process is the one with this id, as before a checkout or in a fork; the server
// is not asked.
func (s *Sandbox) Process(id string) *Process { return &Process{ID: id, s: s} }

// Processes gives the background processes, oldest first.
func (s *Sandbox) Processes(ctx context.Context) ([]ProcessInfo, error) {
	return wire.Answer[[]ProcessInfo](s.c.api.ListProcesses(ctx, s.Name))
}

// Inspect tells how the process is now.
func (p *Process) Inspect(ctx context.Context) (ProcessInfo, error) {
	return wire.Answer[ProcessInfo](p.s.c.api.InspectProcess(ctx, p.s.Name, p.ID))
}

// Wait waits until it has ended, or for timeout (0: without limit): then it is
// still Running, and goes on.
func (p *Process) Wait(ctx context.Context, timeout time.Duration) (ProcessInfo, error) {
	return wire.Answer[ProcessInfo](p.s.c.api.WaitProcess(ctx, p.s.Name, p.ID, &client.WaitProcessParams{TimeoutMs: wire.Milliseconds(timeout)}))
}

// Output reads what it has written, stdout and stderr in their order, from an
// offset on: at most 1 MiB. next is where to go on; an offset that is no longer
// kept gives the oldest that is.
func (p *Process) Output(ctx context.Context, offset int64) (data []byte, next int64, err error) {
	var header http.Header
	data, err = wire.All(func() (*http.Response, error) {
		resp, err := p.s.c.api.ProcessOutput(ctx, p.s.Name, p.ID, &client.ProcessOutputParams{Offset: offset})
		if err == nil {
			header = resp.Header
		}
		return resp, err
	}())
	if err != nil {
		return nil, 0, err
	}
	next, err = strconv.ParseInt(header.Get("Sietch-Next-Offset"), 10, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("read output of %s: %w", p.ID, ErrProtocol)
	}
	return data, next, nil
}

// Follow reads what it has written from an offset on, and what comes until it
// ends; the caller closes.
func (p *Process) Follow(ctx context.Context, offset int64) (io.ReadCloser, error) {
	return wire.Body(p.s.c.api.ProcessOutput(ctx, p.s.Name, p.ID, &client.ProcessOutputParams{Offset: offset, Follow: true}))
}

// Signal sends a signal, by name or number, to it and its group.
func (p *Process) Signal(ctx context.Context, signal string) error {
	return wire.Done(p.s.c.api.SignalProcess(ctx, p.s.Name, p.ID, nil, client.SignalRequest{Signal: signal}))
}

// Kill ends it without asking.
func (p *Process) Kill(ctx context.Context) error { return p.Signal(ctx, "KILL") }

// Remove forgets it and its output; it must have ended.
func (p *Process) Remove(ctx context.Context) error {
	return wire.Done(p.s.c.api.RemoveProcess(ctx, p.s.Name, p.ID, nil))
}
