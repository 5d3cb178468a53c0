package remote

import (
	"context"
	"errors"
	"fmt"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// kinds are the sentinels behind the codes of the API. What has none is a failure
// like any other.
var kinds = map[wire.Code]error{
	wire.Corrupt:    runtime.ErrCorrupt,
	wire.Usage:      runtime.ErrUsage,
	wire.NotFound:   runtime.ErrNotFound,
	wire.Busy:       runtime.ErrBusy,
	wire.NotRunning: runtime.ErrNotActive,
	wire.WrongState: runtime.ErrState,
	wire.Host:       runtime.ErrHost,
	wire.Canceled:   context.Canceled,
	wire.Timeout:    context.DeadlineExceeded,
}

// failed makes of the error of a call what the local engine would have returned.
func (e *Engine) failed(ctx context.Context, err error) error {
	if mine, ok := errors.AsType[callers](err); ok {
		return mine.error
	}
	if said, ok := errors.AsType[*wire.Error](err); ok {
		return &runtime.Error{Kind: kinds[said.Code], Message: said.Message, Hint: said.Hint}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, wire.ErrProtocol) {
		return fmt.Errorf("talk to the server of %s: %w", e.dir, err)
	}
	return e.gone(err)
}

// cannotStart finds the error of a command that the guest cannot run.
func cannotStart(name string, err error) error {
	if said, ok := errors.AsType[*wire.Error](err); ok && said.ExitCode != 0 {
		return &runtime.StartError{Sandbox: name, Status: runtime.ExitStatus{Code: said.ExitCode, Error: said.Message}}
	}
	return err
}
