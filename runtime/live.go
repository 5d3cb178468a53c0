package runtime

import (
	"context"
	"io"
	"syscall"
	"time"
)

// Processes are commands of a sandbox that run on without their caller. The
// guest keeps them and their output, so they are commits', forks' and
// checkouts' as every other process is.
type Processes interface {
	// StartProcess starts a command and returns once it runs. Stdin is empty, and
	// there is no terminal. A *StartError says that the guest cannot run it.
	StartProcess(ctx context.Context, r ExecRequest) (Process, error)
	// ListProcesses returns those started and not yet removed, oldest first.
	ListProcesses(ctx context.Context, name string) ([]Process, error)
	InspectProcess(ctx context.Context, name, id string) (Process, error)
	// WaitProcess returns when the process has ended, at once if it has.
	WaitProcess(ctx context.Context, name, id string) (Process, error)
	// ProcessOutput writes what the process has written, from r.Offset on, and
	// returns the offset to go on from.
	ProcessOutput(ctx context.Context, r ProcessOutputRequest, w io.Writer) (int64, error)
	// SignalProcess sends a signal to the process and its group. One that has
	// ended is left alone.
	SignalProcess(ctx context.Context, name, id string, sig syscall.Signal) error
	// RemoveProcess forgets an ended process and its output; ErrState while it
	// runs.
	RemoveProcess(ctx context.Context, name, id string) error
}

// Process is one command in the background of a sandbox.
type Process struct {
	ID      string    `json:"id"`
	Args    []string  `json:"args"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Running bool      `json:"running"`
	// Ended and ExitCode are set once it has ended.
	Ended    *time.Time `json:"ended,omitempty"`
	ExitCode *int       `json:"exit_code"`
	Signal   int        `json:"signal,omitempty"`
	// Reason explains an exit code that is not the process's own: timed out.
	Reason string `json:"reason,omitempty"`
	// OutputBytes is all it has written, stdout and stderr in their order;
	// OutputFrom is the offset of the oldest byte that is still kept.
	OutputBytes int64 `json:"output_bytes"`
	OutputFrom  int64 `json:"output_from"`
}

// ProcessOutputRequest asks for a process's output.
type ProcessOutputRequest struct {
	Name, ID string
	Offset   int64 // of the first byte wanted; one no longer kept gives the oldest kept
	Limit    int64 // bytes at most; 0: all there is
	Follow   bool  // go on until the process ends
	// Skipped, when set, is called where bytes are missing that are no longer kept.
	Skipped func(bytes int64) `json:"-"`
}

// Files are paths of a guest, beside CopyIn, CopyOut and StatPath. Relative
// paths are refused.
type Files interface {
	ListDir(ctx context.Context, name, path string) ([]PathStat, error)
	// MakeDir makes a directory; parents too when asked, and then an existing
	// directory is no error.
	MakeDir(ctx context.Context, name, path string, mode uint32, parents bool) error
	// RemovePath removes a file or an empty directory, or all beneath it.
	RemovePath(ctx context.Context, name, path string, recursive bool) error
	// WatchPath calls each for every change beneath a path until ctx ends (nil),
	// the machine or the path itself goes, or each returns an error, which is
	// returned. What comes with a new directory may be told twice.
	WatchPath(ctx context.Context, r WatchRequest, each func(FileEvent) error) error
}

// WatchRequest is a directory or file to watch.
type WatchRequest struct {
	Name, Path string
	Recursive  bool
	// Started, when set, is called once changes are being watched.
	Started func()
}

// FileEvent is one change of a path.
type FileEvent struct {
	Path string `json:"path"`
	// Op is create, write, remove, rename (Path is the old name) or attributes.
	// overflow says that changes came too fast and some were not told.
	Op    string `json:"op"`
	IsDir bool   `json:"is_dir"`
}

// Ports are forwarded ports of a running sandbox; Inspect lists them.
type Ports interface {
	// AddPort forwards one more port, with host port 0 to a free one, and
	// returns it. ErrBusy when the host's port is taken. Of a stopped sandbox it
	// is forwarded from the next start on.
	AddPort(ctx context.Context, name string, p Port) (Port, error)
	// RemovePort ends a forwarding (HostIP, Host, Protocol say which); connections
	// that were made through it stay. An empty HostIP means the only one there is.
	RemovePort(ctx context.Context, name string, p Port) error
	// DialPort connects to a TCP port of the guest, forwarded or not. What it
	// returns has CloseWrite, and ends with the machine.
	DialPort(ctx context.Context, name string, port uint16) (io.ReadWriteCloser, error)
}

// Events say what happened in the data directory, whoever did it.
type Events interface {
	// Events calls each for every event after r.After, in order, and with
	// r.Follow goes on until ctx ends (nil) or each returns an error.
	Events(ctx context.Context, r EventsRequest, each func(Event) error) error
}

// EventsRequest selects events.
type EventsRequest struct {
	After  int64 // Event.ID; 0: the oldest kept; -1: only new ones
	Follow bool
}

// Event is one thing that happened.
type Event struct {
	ID   int64     `json:"id"` // grows by one or more
	Time time.Time `json:"time"`
	// Type is noun.verb: sandbox.run, sandbox.start, sandbox.stop,
	// sandbox.pause, sandbox.resume, sandbox.remove, sandbox.fork,
	// sandbox.checkout, commit.create, branch.create, branch.delete,
	// branch.rename, tag.create, tag.delete, image.build, image.import,
	// image.pull, image.bootstrap, image.tag, image.remove, port.add,
	// port.remove, gc.
	Type    string `json:"type"`
	Sandbox string `json:"sandbox,omitempty"`
	Commit  string `json:"commit,omitempty"`
	Image   string `json:"image,omitempty"`
	Ref     string `json:"ref,omitempty"`
	Port    *Port  `json:"port,omitempty"`
}
