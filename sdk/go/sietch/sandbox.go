package sietch

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// Requests and answers, as the API's document has them.
type (
	RunRequest      = client.RunRequest
	SandboxInfo     = client.Sandbox
	Port            = client.Port
	PortRequest     = client.PortRequest
	ExecRequest     = client.ExecRequest
	ExecResult      = client.ExecResult
	ExecStart       = client.ExecStart
	Commit          = client.Commit
	CommitRequest   = client.CommitRequest
	CheckoutRequest = client.CheckoutRequest
	ForkRequest     = client.ForkRequest
	Fork            = client.Fork
	ReflogEntry     = client.ReflogEntry
	Ref             = client.Ref
	Event           = client.Event
	Version         = client.Version
)

// Sandbox is one machine, by its name.
type Sandbox struct {
	Name string
	// ReadyMs is how long it took from the request to the first exec that would
	// succeed; 0 where the sandbox is not what was just made.
	ReadyMs float64

	c *Client
}

// Run makes a sandbox of an image or a commit; it is ready when Run returns.
func (c *Client) Run(ctx context.Context, q RunRequest) (*Sandbox, error) {
	info, err := wire.Answer[SandboxInfo](c.api.RunSandbox(ctx, nil, q))
	if err != nil {
		return nil, err
	}
	return &Sandbox{Name: info.Name, ReadyMs: info.Timing.ReadyMs, c: c}, nil
}

// Sandbox is the one of this name; the server is not asked.
func (c *Client) Sandbox(name string) *Sandbox { return &Sandbox{Name: name, c: c} }

// List gives the sandboxes, oldest first; all: also those that do not run.
func (c *Client) List(ctx context.Context, all bool) ([]SandboxInfo, error) {
	return wire.Answer[[]SandboxInfo](c.api.ListSandboxes(ctx, &client.ListSandboxesParams{All: all}))
}

// Inspect tells how the sandbox is now.
func (s *Sandbox) Inspect(ctx context.Context) (SandboxInfo, error) {
	return wire.Answer[SandboxInfo](s.c.api.InspectSandbox(ctx, s.Name))
}

// Pause lets it stand still. Idempotent, as are Resume, Stop and Start.
func (s *Sandbox) Pause(ctx context.Context) error {
	return wire.Done(s.c.api.PauseSandbox(ctx, s.Name, nil))
}

// Resume lets it go on.
func (s *Sandbox) Resume(ctx context.Context) error {
	return wire.Done(s.c.api.ResumeSandbox(ctx, s.Name, nil))
}

// Stop shuts it down; its disk stays. After timeout (0: 10 s) it is ended
// without being asked.
func (s *Sandbox) Stop(ctx context.Context, timeout time.Duration) error {
	return wire.Done(s.c.api.StopSandbox(ctx, s.Name, &client.StopSandboxParams{TimeoutMs: wire.Milliseconds(timeout)}))
}

// Start boots it on its disk.
func (s *Sandbox) Start(ctx context.Context) (SandboxInfo, error) {
	return wire.Answer[SandboxInfo](s.c.api.StartSandbox(ctx, s.Name, nil))
}

// Remove removes it; force: also when it runs or is damaged.
func (s *Sandbox) Remove(ctx context.Context, force bool) error {
	return wire.Done(s.c.api.RemoveSandbox(ctx, s.Name, &client.RemoveSandboxParams{Force: force}))
}

// LogsRequest says what of the logs is wanted.
type LogsRequest struct {
	Source string // all (or empty), console or main
	Tail   int    // the last lines only; 0: all
	Follow bool   // go on until the sandbox ends
}

// Logs reads what console and main process have printed; the caller closes.
func (s *Sandbox) Logs(ctx context.Context, q LogsRequest) (io.ReadCloser, error) {
	return wire.Body(s.c.api.SandboxLogs(ctx, s.Name, &client.SandboxLogsParams{Source: client.SandboxLogsParamsSource(q.Source), Tail: q.Tail, Follow: q.Follow}))
}

// Ports gives the forwarded ports.
func (s *Sandbox) Ports(ctx context.Context) ([]Port, error) {
	return wire.Answer[[]Port](s.c.api.ListPorts(ctx, s.Name))
}

// AddPort forwards a port of the host; the answer has the one that was chosen.
func (s *Sandbox) AddPort(ctx context.Context, q PortRequest) (Port, error) {
	return wire.Answer[Port](s.c.api.AddPort(ctx, s.Name, nil, q))
}

// RemovePort ends the forwarding of a port.
func (s *Sandbox) RemovePort(ctx context.Context, p Port) error {
	return wire.Done(s.c.api.RemovePort(ctx, s.Name, p.Host, &client.RemovePortParams{HostIp: p.HostIp, Protocol: client.RemovePortParamsProtocol(p.Protocol)}))
}

// Events gives what happens, whoever causes it, until ctx ends: from the event
// behind after on, 0 for the oldest that is kept, -1 for new ones only.
func (c *Client) Events(ctx context.Context, after int64) (iter.Seq2[Event, error], error) {
	return c.events(ctx, &client.EventsParams{After: &after})
}

// PastEvents is Events that ends with the last that has happened.
func (c *Client) PastEvents(ctx context.Context, after int64) (iter.Seq2[Event, error], error) {
	follow := false
	return c.events(ctx, &client.EventsParams{After: &after, Follow: &follow})
}

func (c *Client) events(ctx context.Context, q *client.EventsParams) (iter.Seq2[Event, error], error) {
	r, err := wire.Body(c.api.Events(ctx, q))
	if err != nil {
		return nil, err
	}
	return wire.Messages[Event](r, ""), nil
}

// Version tells the server's version and that of its API.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return wire.Answer[Version](c.api.Version(ctx))
}
