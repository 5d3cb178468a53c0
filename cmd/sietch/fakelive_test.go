package main

import (
	"context"
	"io"
	"syscall"

	"github.com/sietch-dev/sietch/runtime"
)

// --- what only runs of the API ask for

func (f *fake) StartProcess(ctx context.Context, r runtime.ExecRequest) (runtime.Process, error) {
	return runtime.Process{ID: "p1", Args: r.Args, Started: testNow, Running: true}, f.call("StartProcess", r)
}

func (f *fake) ListProcesses(ctx context.Context, name string) ([]runtime.Process, error) {
	return nil, f.call("ListProcesses", name)
}

func (f *fake) InspectProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	return runtime.Process{}, f.call("InspectProcess", []string{name, id})
}

func (f *fake) WaitProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	return runtime.Process{}, f.call("WaitProcess", []string{name, id})
}

func (f *fake) ProcessOutput(ctx context.Context, r runtime.ProcessOutputRequest, w io.Writer) (int64, error) {
	return 0, f.call("ProcessOutput", r.ID)
}

func (f *fake) SignalProcess(ctx context.Context, name, id string, sig syscall.Signal) error {
	return f.call("SignalProcess", []string{name, id, sig.String()})
}

func (f *fake) RemoveProcess(ctx context.Context, name, id string) error {
	return f.call("RemoveProcess", []string{name, id})
}

func (f *fake) ListDir(ctx context.Context, name, path string) ([]runtime.PathStat, error) {
	return nil, f.call("ListDir", []string{name, path})
}

func (f *fake) MakeDir(ctx context.Context, name, path string, mode uint32, parents bool) error {
	return f.call("MakeDir", []string{name, path})
}

func (f *fake) RemovePath(ctx context.Context, name, path string, recursive bool) error {
	return f.call("RemovePath", []string{name, path})
}

func (f *fake) WatchPath(ctx context.Context, r runtime.WatchRequest, each func(runtime.FileEvent) error) error {
	return f.call("WatchPath", r.Path)
}

func (f *fake) AddPort(ctx context.Context, name string, p runtime.Port) (runtime.Port, error) {
	return p, f.call("AddPort", name)
}

func (f *fake) RemovePort(ctx context.Context, name string, p runtime.Port) error {
	return f.call("RemovePort", name)
}

func (f *fake) DialPort(ctx context.Context, name string, port uint16) (io.ReadWriteCloser, error) {
	return nil, f.call("DialPort", name)
}

func (f *fake) Events(ctx context.Context, r runtime.EventsRequest, each func(runtime.Event) error) error {
	return f.call("Events", r.After)
}
