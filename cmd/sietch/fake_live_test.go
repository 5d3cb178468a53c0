package main

import (
	"context"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// --- commands in the background

var fakeProcesses = []runtime.Process{
	{ID: "aaaa2222", Args: []string{"python3", "-m", "http.server"}, PID: 71, Started: testNow.Add(-time.Hour), Running: true, OutputBytes: 3 << 20, OutputFrom: 2 << 20},
	{ID: "bbbb3333", Args: []string{"sh", "-c", "make test\nexit 2"}, PID: 80, Started: testNow.Add(-time.Minute), Ended: ptr(testNow), ExitCode: ptr(2), OutputBytes: 12},
	{ID: "cccc4444", Args: []string{"sleep", "60"}, PID: 91, Started: testNow.Add(-time.Minute), Ended: ptr(testNow), ExitCode: ptr(143), Signal: 15},
}

func (f *fake) StartProcess(ctx context.Context, r runtime.ExecRequest) (runtime.Process, error) {
	if err := f.call("StartProcess", r); err != nil {
		return runtime.Process{}, err
	}
	if r.Args[0] == "nowhere" {
		return runtime.Process{}, &runtime.StartError{Sandbox: r.Name, Status: runtime.ExitStatus{Code: 127, Error: "nowhere: command not found"}}
	}
	return fakeProcesses[0], nil
}

func (f *fake) ListProcesses(ctx context.Context, name string) ([]runtime.Process, error) {
	return fakeProcesses, f.call("ListProcesses", name)
}

func (f *fake) process(verb, name, id string) (runtime.Process, error) {
	if err := f.call(verb, []string{name, id}); err != nil {
		return runtime.Process{}, err
	}
	for _, p := range fakeProcesses {
		if p.ID == id {
			return p, nil
		}
	}
	return runtime.Process{}, f.missing("process", id)
}

func (f *fake) InspectProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	return f.process("InspectProcess", name, id)
}

func (f *fake) WaitProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	return f.process("WaitProcess", name, id)
}

func (f *fake) ProcessOutput(ctx context.Context, r runtime.ProcessOutputRequest, w io.Writer) (int64, error) {
	if err := f.call("ProcessOutput", r); err != nil {
		return 0, err
	}
	if r.Offset < 100 && r.Skipped != nil {
		r.Skipped(100 - r.Offset)
	}
	n, err := io.WriteString(w, "what it wrote\n")
	return 100 + int64(n), err
}

func (f *fake) SignalProcess(ctx context.Context, name, id string, sig syscall.Signal) error {
	return f.call("SignalProcess", []any{name, id, int(sig)})
}

func (f *fake) RemoveProcess(ctx context.Context, name, id string) error {
	_, err := f.process("RemoveProcess", name, id)
	return err
}

// --- files and ports

func (f *fake) ListDir(ctx context.Context, name, path string) ([]runtime.PathStat, error) {
	at := testNow.Add(-time.Hour)
	return []runtime.PathStat{
		{Name: "a dir", Mode: 0o043770, UID: 1, GID: 2, IsDir: true, SizeBytes: 4096, Modified: at},
		{Name: "bad\x1b[2J", Mode: 0o104711, SizeBytes: 12, Modified: at},
		{Name: "link", Mode: 0o120777, LinkTarget: "a dir", SizeBytes: 5, Modified: at},
	}, f.call("ListDir", []string{name, path})
}

func (f *fake) MakeDir(ctx context.Context, name, path string, mode uint32, parents bool) error {
	return f.call("MakeDir", []any{name, path, mode, parents})
}

func (f *fake) RemovePath(ctx context.Context, name, path string, recursive bool) error {
	return f.call("RemovePath", []any{name, path, recursive})
}

func (f *fake) WatchPath(ctx context.Context, r runtime.WatchRequest, each func(runtime.FileEvent) error) error {
	if err := f.call("WatchPath", []any{r.Name, r.Path, r.Recursive}); err != nil {
		return err
	}
	r.Started()
	for _, ev := range []runtime.FileEvent{{Path: r.Path + "/new", Op: "create", IsDir: true}, {Path: r.Path, Op: "overflow"}} {
		if err := each(ev); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) AddPort(ctx context.Context, name string, p runtime.Port) (runtime.Port, error) {
	err := f.call("AddPort", []any{name, p})
	if p.Host == 0 {
		p.Host = 32768
	}
	return p, err
}

func (f *fake) RemovePort(ctx context.Context, name string, p runtime.Port) error {
	p.Guest = 0 // means nothing to an engine
	return f.call("RemovePort", []any{name, p})
}

func (f *fake) DialPort(ctx context.Context, name string, port uint16) (io.ReadWriteCloser, error) {
	return struct {
		io.Reader
		io.Writer
		io.Closer
	}{strings.NewReader(""), io.Discard, io.NopCloser(nil)}, f.call("DialPort", []any{name, port})
}

// --- events

func (f *fake) Events(ctx context.Context, r runtime.EventsRequest, each func(runtime.Event) error) error {
	if err := f.call("Events", r); err != nil {
		return err
	}
	for _, ev := range []runtime.Event{
		{ID: 7, Time: testNow, Type: "sandbox.run", Sandbox: "box", Image: "agent:latest"},
		{ID: 8, Time: testNow.Add(1500 * time.Millisecond), Type: "commit.create", Sandbox: "box", Commit: commitID("d"), Ref: "main"},
		{ID: 9, Time: testNow.Add(time.Minute), Type: "port.add", Sandbox: "box", Port: &runtime.Port{HostIP: "127.0.0.1", Host: 8080, Guest: 80, Protocol: "tcp"}},
	} {
		if ev.ID <= r.After {
			continue
		}
		if err := each(ev); err != nil {
			return err
		}
	}
	return nil
}
