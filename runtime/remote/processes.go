package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"syscall"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// StartProcess starts a command in the background.
func (e *Engine) StartProcess(ctx context.Context, r runtime.ExecRequest) (runtime.Process, error) {
	if r.TTY || r.Stdin {
		return runtime.Process{}, &runtime.Error{Kind: runtime.ErrUsage, Message: "a process in the background has no terminal and no stdin"}
	}
	if err := sandbox(r.Name); err != nil {
		return runtime.Process{}, err
	}
	q := client.ProcessRequest{Args: r.Args, Env: r.Env, Workdir: r.WorkingDir, User: r.User, TimeoutMs: r.Timeout.Milliseconds()}
	var cannot error
	p, err := call(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		resp, err := wire.Opened(e.api.StartProcess(ctx, r.Name, nil, q, with))
		cannot = cannotStart(r.Name, err)
		return resp, err
	}, func(resp *http.Response) (runtime.Process, error) { return wire.Answer[runtime.Process](resp, nil) })
	if _, ok := cannot.(*runtime.StartError); ok {
		err = cannot
	}
	return p, err
}

// ListProcesses lists the processes in the background.
func (e *Engine) ListProcesses(ctx context.Context, name string) ([]runtime.Process, error) {
	return about[[]runtime.Process](ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ListProcesses(ctx, name, with)
	})
}

// InspectProcess describes one.
func (e *Engine) InspectProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	if err := process(name, id); err != nil {
		return runtime.Process{}, err
	}
	return ask[runtime.Process](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.InspectProcess(ctx, name, id, with)
	})
}

// WaitProcess returns when it has ended.
func (e *Engine) WaitProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	if err := process(name, id); err != nil {
		return runtime.Process{}, err
	}
	return ask[runtime.Process](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.WaitProcess(ctx, name, id, &client.WaitProcessParams{}, with)
	})
}

// outputPage is the most that the API gives in one part; less is all there is.
const outputPage = 1 << 20

// ProcessOutput writes what it has written. The API gives what there is in parts.
func (e *Engine) ProcessOutput(ctx context.Context, r runtime.ProcessOutputRequest, w io.Writer) (int64, error) {
	if err := process(r.Name, r.ID); err != nil {
		return r.Offset, err
	}
	if r.Follow {
		part, err := e.outputPart(ctx, r, w)
		return part.next, err
	}
	at, left := r.Offset, r.Limit
	for {
		part, err := e.outputPart(ctx, runtime.ProcessOutputRequest{Name: r.Name, ID: r.ID, Offset: at, Limit: left, Skipped: r.Skipped}, w)
		at = part.next
		if left > 0 {
			left -= part.bytes
		}
		if err != nil || part.bytes < outputPage || r.Limit > 0 && left <= 0 {
			return at, err
		}
	}
}

// part is one answer of output.
type part struct{ bytes, next int64 }

func (e *Engine) outputPart(ctx context.Context, r runtime.ProcessOutputRequest, w io.Writer) (part, error) {
	p := part{next: r.Offset}
	_, err := call(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ProcessOutput(ctx, r.Name, r.ID, &client.ProcessOutputParams{Offset: r.Offset, Limit: r.Limit, Follow: r.Follow}, trailing(with))
	}, func(resp *http.Response) (struct{}, error) {
		begins, err := strconv.ParseInt(resp.Header.Get("Sietch-Offset"), 10, 64)
		if err != nil {
			resp.Body.Close()
			return struct{}{}, fmt.Errorf("read output of %s: %w", r.ID, wire.ErrProtocol)
		}
		skipped := func(n int64) {
			if n > 0 && r.Skipped != nil {
				r.Skipped(n)
			}
		}
		skipped(begins - r.Offset)
		p.bytes, err = drain(resp, w)
		p.next = begins + p.bytes
		if err != nil {
			return struct{}{}, err
		}
		next := resp.Header.Get("Sietch-Next-Offset")
		if r.Follow {
			next = resp.Trailer.Get("Sietch-Next-Offset")
		}
		n, err := strconv.ParseInt(next, 10, 64)
		if err != nil {
			return struct{}{}, fmt.Errorf("read output of %s: %w", r.ID, wire.ErrProtocol)
		}
		skipped(n - p.next)
		p.next = n
		return struct{}{}, nil
	})
	return p, err
}

// SignalProcess sends a signal.
func (e *Engine) SignalProcess(ctx context.Context, name, id string, sig syscall.Signal) error {
	if sig < 1 || sig > 64 {
		return &runtime.Error{Kind: runtime.ErrUsage, Message: fmt.Sprintf("signal %d is not one of 1 to 64", sig)}
	}
	if err := process(name, id); err != nil {
		return err
	}
	return tell(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.SignalProcess(ctx, name, id, nil, client.SignalRequest{Signal: strconv.Itoa(int(sig))}, with)
	})
}

// RemoveProcess forgets an ended process.
func (e *Engine) RemoveProcess(ctx context.Context, name, id string) error {
	if err := process(name, id); err != nil {
		return err
	}
	return tell(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.RemoveProcess(ctx, name, id, nil, with)
	})
}

// process refuses what no path of a request can hold.
func process(name, id string) error {
	switch {
	case id == "":
		return &runtime.Error{Kind: runtime.ErrUsage, Message: "no process id given", Hint: "sietch process ls " + name}
	case sandbox(name) != nil:
		return sandbox(name)
	case unspeakable(id):
		return &runtime.Error{Kind: runtime.ErrNotFound, Message: fmt.Sprintf("process %s does not exist in %s", id, name), Hint: "sietch process ls " + name}
	}
	return nil
}

// unspeakable is a word that means something else as a part of a path.
func unspeakable(word string) bool { return word == "." || word == ".." }
