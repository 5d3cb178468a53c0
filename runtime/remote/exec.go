package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// stdinWindow is how much input may be on its way to a command that does not read
// it. Signals overtake no more than that.
const stdinWindow = 256 << 10

// Exec runs a command in a sandbox. What is detached is a process in the
// background.
func (e *Engine) Exec(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
	if r.Detach {
		return e.leave(ctx, r)
	}
	if err := sandbox(r.Name); err != nil {
		return runtime.ExitStatus{}, err
	}
	x, err := wire.StartExec(ctx, e.calls, r.Name, client.ExecStart{
		Args: r.Args, Env: r.Env, Workdir: r.WorkingDir, User: r.User, Stdin: r.Stdin,
		Tty: r.TTY, Rows: int(r.Rows), Cols: int(r.Cols), TimeoutMs: r.Timeout.Milliseconds(), Window: stdinWindow,
	})
	if err != nil {
		return runtime.ExitStatus{}, e.execFailed(ctx, err)
	}
	x.Started = stdio.Started
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { control(x, stdio, ended) })
	if r.Stdin {
		go feed(x, stdio.Stdin) // it may be in a Read that nothing ends
	}
	st, err := output(x, r.Name, stdio)
	close(ended)
	wg.Wait()
	if err != nil {
		return runtime.ExitStatus{}, e.execFailed(ctx, err)
	}
	return runtime.ExitStatus{Code: st.Code, Signal: st.Signal, Error: st.Reason}, nil
}

// execFailed is failed, but for the end of ctx, which leaves nothing to be undone.
func (e *Engine) execFailed(ctx context.Context, err error) error {
	if _, mine := errors.AsType[callers](err); ctx.Err() != nil && !mine {
		return context.Cause(ctx)
	}
	return e.failed(ctx, err)
}

// output copies what the command writes until it ends, and closes it.
func output(x *wire.Exec, name string, stdio runtime.ExecIO) (wire.ExitStatus, error) {
	out, errOut := &ours{w: stdio.Stdout}, &ours{w: stdio.Stderr}
	st, err := x.Copy(out, errOut)
	for _, o := range []*ours{out, errOut} {
		if o.err != nil {
			return st, callers{fmt.Errorf("exec in %s: %w", name, o.err)}
		}
	}
	return st, err
}

// feed sends input. What cannot be sent is of no use to a command that has ended,
// and the end of the connection is heard by who reads.
func feed(x *wire.Exec, in io.Reader) {
	if in != nil {
		io.Copy(x, in)
	}
	x.CloseStdin()
}

// control passes sizes and signals on.
func control(x *wire.Exec, stdio runtime.ExecIO, ended <-chan struct{}) {
	resize, signals := stdio.Resize, stdio.Signals
	for {
		var err error
		select {
		case s, ok := <-resize:
			if !ok {
				resize = nil
				continue
			}
			err = x.Resize(int(s.Rows), int(s.Cols))
		case s, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			err = x.Signal(strconv.Itoa(int(s)))
		case <-ended:
			return
		}
		if err != nil {
			return // the reader hears of it
		}
	}
}

// leave starts a command that runs on.
func (e *Engine) leave(ctx context.Context, r runtime.ExecRequest) (runtime.ExitStatus, error) {
	r.Stdin, r.TTY = false, false
	_, err := e.StartProcess(ctx, r)
	if cannot, ok := errors.AsType[*runtime.StartError](err); ok {
		return cannot.Status, nil
	}
	return runtime.ExitStatus{}, err
}
