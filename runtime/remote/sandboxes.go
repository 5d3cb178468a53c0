package remote

import (
	"context"
	"io"
	"net/http"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// Run makes a sandbox.
func (e *Engine) Run(ctx context.Context, r runtime.RunRequest) (runtime.Sandbox, error) {
	q := client.RunRequest{
		From: r.From, Name: r.Name, Cpus: r.CPUs, MemoryBytes: r.MemoryBytes, DiskBytes: r.DiskBytes,
		Env: r.Env, Workdir: r.WorkingDir, User: r.User, Network: client.RunRequestNetwork(r.Network), Labels: r.Labels,
		Message: r.Message, Args: r.Args, FromDisk: r.FromDisk, Nested: r.Nested, TtlMs: wire.Milliseconds(r.TTL),
	}
	for _, p := range r.Ports {
		q.Ports = append(q.Ports, portRequest(p))
	}
	return ask[runtime.Sandbox](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.RunSandbox(ctx, nil, q, with)
	})
}

// List gives the sandboxes.
func (e *Engine) List(ctx context.Context, all bool) ([]runtime.Sandbox, error) {
	return ask[[]runtime.Sandbox](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ListSandboxes(ctx, &client.ListSandboxesParams{All: all}, with)
	})
}

// Inspect describes a sandbox.
func (e *Engine) Inspect(ctx context.Context, name string) (runtime.Sandbox, error) {
	return about[runtime.Sandbox](ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.InspectSandbox(ctx, name, with)
	})
}

// Logs copies what a sandbox has said.
func (e *Engine) Logs(ctx context.Context, r runtime.LogsRequest, w io.Writer) error {
	if err := sandbox(r.Name); err != nil {
		return err
	}
	return fetch(ctx, e, w, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.SandboxLogs(ctx, r.Name, &client.SandboxLogsParams{Source: client.SandboxLogsParamsSource(r.Source), Tail: r.Tail, Follow: r.Follow}, with)
	})
}

// Stats measures sandboxes.
func (e *Engine) Stats(ctx context.Context, names []string) ([]runtime.Stats, error) {
	return ask[[]runtime.Stats](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Stats(ctx, &client.StatsParams{Name: names}, with)
	})
}

// Resize bounds a sandbox.
func (e *Engine) Resize(ctx context.Context, r runtime.ResizeRequest) (runtime.Sandbox, error) {
	return about[runtime.Sandbox](ctx, e, r.Name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ResizeSandbox(ctx, r.Name, nil, client.ResizeRequest{Cpus: r.CPUs, MemoryBytes: r.MemoryBytes}, with)
	})
}

// Reclaim takes back memory that a guest has free.
func (e *Engine) Reclaim(ctx context.Context, name string) (runtime.ReclaimReport, error) {
	return about[runtime.ReclaimReport](ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ReclaimSandbox(ctx, name, nil, with)
	})
}

// Pause lets a sandbox stand still.
func (e *Engine) Pause(ctx context.Context, name string) error {
	return to(ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.PauseSandbox(ctx, name, nil, with)
	})
}

// Resume lets it go on.
func (e *Engine) Resume(ctx context.Context, name string) error {
	return to(ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ResumeSandbox(ctx, name, nil, with)
	})
}

// Stop shuts a sandbox down.
func (e *Engine) Stop(ctx context.Context, r runtime.StopRequest) error {
	return to(ctx, e, r.Name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.StopSandbox(ctx, r.Name, &client.StopSandboxParams{TimeoutMs: wire.Milliseconds(r.Timeout)}, with)
	})
}

// Start boots a stopped sandbox.
func (e *Engine) Start(ctx context.Context, name string) (runtime.Sandbox, error) {
	return about[runtime.Sandbox](ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.StartSandbox(ctx, name, nil, with)
	})
}

// Remove removes a sandbox.
func (e *Engine) Remove(ctx context.Context, name string, force bool) error {
	return to(ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.RemoveSandbox(ctx, name, &client.RemoveSandboxParams{Force: force}, with)
	})
}

// sandbox refuses, as the local engine does, a name that no path of a request can
// hold.
func sandbox(name string) error { return runtime.ValidateName("sandbox", name) }

// about is ask about a sandbox.
func about[T any](ctx context.Context, e *Engine, name string, send sender) (T, error) {
	if err := sandbox(name); err != nil {
		var none T
		return none, err
	}
	return ask[T](ctx, e, send)
}

// to is tell to a sandbox.
func to(ctx context.Context, e *Engine, name string, send sender) error {
	if err := sandbox(name); err != nil {
		return err
	}
	return tell(ctx, e, send)
}
