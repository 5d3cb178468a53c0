package runtime

// Verbs of the Engine that are being built on this branch; each one leaves this
// file as it comes. Nothing of it goes to main.

import (
	"context"
	"errors"
	"io"
	"syscall"
)

var errPending = errors.New("not built yet")

func (e *Local) StartProcess(context.Context, ExecRequest) (Process, error) {
	return Process{}, errPending
}
func (e *Local) ListProcesses(context.Context, string) ([]Process, error) { return nil, errPending }
func (e *Local) InspectProcess(context.Context, string, string) (Process, error) {
	return Process{}, errPending
}
func (e *Local) WaitProcess(context.Context, string, string) (Process, error) {
	return Process{}, errPending
}
func (e *Local) ProcessOutput(context.Context, ProcessOutputRequest, io.Writer) (int64, error) {
	return 0, errPending
}
func (e *Local) SignalProcess(context.Context, string, string, syscall.Signal) error {
	return errPending
}
func (e *Local) RemoveProcess(context.Context, string, string) error         { return errPending }
func (e *Local) ListDir(context.Context, string, string) ([]PathStat, error) { return nil, errPending }
func (e *Local) MakeDir(context.Context, string, string, uint32, bool) error { return errPending }
func (e *Local) RemovePath(context.Context, string, string, bool) error      { return errPending }
func (e *Local) WatchPath(context.Context, WatchRequest, func(FileEvent) error) error {
	return errPending
}
func (e *Local) AddPort(context.Context, string, Port) (Port, error) { return Port{}, errPending }
func (e *Local) RemovePort(context.Context, string, Port) error      { return errPending }
func (e *Local) DialPort(context.Context, string, uint16) (io.ReadWriteCloser, error) {
	return nil, errPending
}
func (e *Local) Events(context.Context, EventsRequest, func(Event) error) error { return errPending }
