package sietch_test

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api"
	"github.com/sietch-dev/sietch/sdk/go/sietch"
)

// machines is an engine whose machines are a few maps: files that are committed,
// forked and checked out with them, and commands that are played.
type machines struct {
	runtime.Engine // what is not here is not called

	mu      sync.Mutex
	boxes   map[string]map[string]string // files by name of a sandbox
	commits map[string]map[string]string
	log     []runtime.Commit
	jobs    map[string]*runtime.Process
	last    any // the last request that was not of a type of its own here

	gone chan struct{} // closed when a command that waits for ever is ended
}

func newMachines() *machines {
	return &machines{boxes: map[string]map[string]string{}, commits: map[string]map[string]string{}, jobs: map[string]*runtime.Process{}, gone: make(chan struct{})}
}

func (m *machines) Close() error { return nil }

func (m *machines) box(name string) (map[string]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	files, ok := m.boxes[name]
	if !ok {
		return nil, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no sandbox " + name, Hint: "sietch ps -a lists them"}
	}
	return files, nil
}

func (m *machines) Run(_ context.Context, r runtime.RunRequest) (runtime.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = r
	name := r.Name
	if name == "" {
		name = fmt.Sprintf("made-up-%d", len(m.boxes))
	}
	m.boxes[name] = map[string]string{"/etc/motd": "hello\n"}
	return runtime.Sandbox{Name: name, State: runtime.Running, Image: r.From, Timing: &runtime.BootTiming{ReadyMS: 12}}, nil
}

func (m *machines) Inspect(_ context.Context, name string) (runtime.Sandbox, error) {
	_, err := m.box(name)
	return runtime.Sandbox{Name: name, State: runtime.Running}, err
}

func (m *machines) List(context.Context, bool) ([]runtime.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []runtime.Sandbox
	for _, name := range slices.Sorted(maps.Keys(m.boxes)) {
		list = append(list, runtime.Sandbox{Name: name, State: runtime.Running})
	}
	return list, nil
}

func (m *machines) Remove(_ context.Context, name string, force bool) error {
	if _, err := m.box(name); err != nil {
		return err
	}
	if !force {
		return &runtime.Error{Kind: runtime.ErrState, Message: name + " is running", Hint: "rm -f also removes what runs"}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.boxes, name)
	return nil
}

func (m *machines) Stop(_ context.Context, r runtime.StopRequest) error { m.last = r; return nil }
func (m *machines) Pause(context.Context, string) error                 { return nil }
func (m *machines) Resume(context.Context, string) error                { return nil }
func (m *machines) Start(_ context.Context, name string) (runtime.Sandbox, error) {
	return m.Inspect(context.Background(), name)
}

// Exec plays: echo WORDS, cat (stdin), fail, both (streams), size (of the
// terminal, until it is told one), forever.
func (m *machines) Exec(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
	if _, err := m.box(r.Name); err != nil {
		return runtime.ExitStatus{}, err
	}
	if stdio.Started != nil {
		stdio.Started()
	}
	switch r.Args[0] {
	case "echo":
		fmt.Fprintln(stdio.Stdout, strings.Join(r.Args[1:], " "))
	case "cat":
		if _, err := io.Copy(stdio.Stdout, stdio.Stdin); err != nil {
			return runtime.ExitStatus{}, err
		}
	case "both":
		fmt.Fprint(stdio.Stdout, "out")
		fmt.Fprint(stdio.Stderr, "err")
	case "size":
		size := <-stdio.Resize
		sig := <-stdio.Signals
		fmt.Fprintf(stdio.Stdout, "%dx%d %d of %dx%d", size.Rows, size.Cols, sig, r.Rows, r.Cols)
	case "forever":
		fmt.Fprint(stdio.Stdout, "on")
		<-ctx.Done()
		close(m.gone)
		return runtime.ExitStatus{}, ctx.Err()
	case "break":
		fmt.Fprint(stdio.Stdout, "half")
		return runtime.ExitStatus{}, &runtime.Error{Kind: runtime.ErrNotActive, Message: r.Name + " has stopped"}
	default:
		return runtime.ExitStatus{Code: 127, Error: r.Args[0] + ": not found"}, nil
	}
	return runtime.ExitStatus{}, nil
}

func (m *machines) StartProcess(_ context.Context, r runtime.ExecRequest) (runtime.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &runtime.Process{ID: fmt.Sprintf("p%d", len(m.jobs)+1), Args: r.Args, Running: true}
	m.jobs[p.ID] = p
	return *p, nil
}

func (m *machines) ListProcesses(context.Context, string) ([]runtime.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []runtime.Process
	for _, id := range slices.Sorted(maps.Keys(m.jobs)) {
		list = append(list, *m.jobs[id])
	}
	return list, nil
}

func (m *machines) InspectProcess(_ context.Context, _, id string) (runtime.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.jobs[id]
	if !ok {
		return runtime.Process{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no process " + id}
	}
	return *p, nil
}

func (m *machines) WaitProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	for {
		p, err := m.InspectProcess(ctx, name, id)
		if err != nil || !p.Running {
			return p, err
		}
		select {
		case <-ctx.Done():
			return p, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (m *machines) ProcessOutput(_ context.Context, r runtime.ProcessOutputRequest, w io.Writer) (int64, error) {
	const text = "0123456789"
	_, err := io.WriteString(w, text[r.Offset:])
	return int64(len(text)), err
}

func (m *machines) SignalProcess(_ context.Context, _, id string, sig syscall.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.jobs[id].Running, m.jobs[id].Signal = false, int(sig)
	code := 128 + int(sig)
	m.jobs[id].ExitCode = &code
	return nil
}

func (m *machines) RemoveProcess(_ context.Context, _, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, id)
	return nil
}

func (m *machines) CopyIn(_ context.Context, r runtime.CopyInRequest, in io.Reader) error {
	files, err := m.box(r.Name)
	if err != nil {
		return err
	}
	archive := tar.NewReader(in)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		m.mu.Lock()
		files[filepath.Join(r.Path, h.Name)] = string(data)
		m.last = h.FileInfo().Mode()
		m.mu.Unlock()
	}
}

func (m *machines) CopyOut(_ context.Context, r runtime.CopyOutRequest, out io.Writer) error {
	files, err := m.box(r.Name)
	if err != nil {
		return err
	}
	m.mu.Lock()
	text, ok := files[r.Path]
	m.mu.Unlock()
	if !ok {
		return &runtime.Error{Kind: runtime.ErrNotFound, Message: r.Path + ": no such file"}
	}
	archive := tar.NewWriter(out)
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(r.Path), Mode: 0o644, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := io.WriteString(archive, text); err != nil {
		return err
	}
	return archive.Close()
}

func (m *machines) StatPath(_ context.Context, name, path string) (runtime.PathStat, error) {
	files, err := m.box(name)
	return runtime.PathStat{Name: filepath.Base(path), SizeBytes: int64(len(files[path]))}, err
}

func (m *machines) ListDir(_ context.Context, name, dir string) ([]runtime.PathStat, error) {
	files, err := m.box(name)
	var list []runtime.PathStat
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if filepath.Dir(path) == dir {
			list = append(list, runtime.PathStat{Name: filepath.Base(path)})
		}
	}
	return list, err
}

func (m *machines) MakeDir(_ context.Context, _, path string, mode uint32, parents bool) error {
	m.last = fmt.Sprintf("mkdir %s %o %t", path, mode, parents)
	return nil
}

func (m *machines) RemovePath(_ context.Context, name, path string, recursive bool) error {
	files, err := m.box(name)
	delete(files, path)
	m.last = recursive
	return err
}

func (m *machines) WatchPath(ctx context.Context, r runtime.WatchRequest, each func(runtime.FileEvent) error) error {
	r.Started()
	for _, op := range []string{"create", "write"} {
		if err := each(runtime.FileEvent{Path: r.Path + "/new", Op: op}); err != nil {
			return err
		}
	}
	return &runtime.Error{Kind: runtime.ErrNotActive, Message: r.Name + " has stopped"}
}

func (m *machines) Events(ctx context.Context, r runtime.EventsRequest, each func(runtime.Event) error) error {
	for id := max(r.After, 0) + 1; id <= 3; id++ {
		if err := each(runtime.Event{ID: id, Type: "sandbox.run", Sandbox: "box"}); err != nil {
			return err
		}
	}
	if r.Follow {
		<-ctx.Done()
	}
	return nil
}

func (m *machines) AddPort(_ context.Context, _ string, p runtime.Port) (runtime.Port, error) {
	p.HostIP, p.Host, p.Protocol = "127.0.0.1", 40000, "tcp"
	return p, nil
}

func (m *machines) RemovePort(_ context.Context, _ string, p runtime.Port) error {
	m.last = p
	return nil
}

func (m *machines) Commit(_ context.Context, r runtime.CommitRequest) (runtime.Commit, error) {
	files, err := m.box(r.Name)
	if err != nil {
		return runtime.Commit{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := runtime.Commit{ID: fmt.Sprintf("c%d", len(m.log)+1), Sandbox: r.Name, Message: r.Message, Labels: r.Labels, Kind: "full"}
	m.commits[c.ID], m.log = maps.Clone(files), append([]runtime.Commit{c}, m.log...)
	return c, nil
}

func (m *machines) Checkout(_ context.Context, r runtime.CheckoutRequest) (runtime.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	files, ok := m.commits[r.Ref]
	if !ok {
		return runtime.Sandbox{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no commit " + r.Ref, Hint: "sietch log lists them"}
	}
	m.boxes[r.Name] = maps.Clone(files)
	return runtime.Sandbox{Name: r.Name, Head: runtime.Head{Commit: r.Ref, Branch: r.NewBranch}}, nil
}

func (m *machines) Fork(_ context.Context, r runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
	files, err := m.box(r.From)
	if err != nil {
		return nil, err
	}
	m.last = r
	var made []runtime.Fork
	for i := range r.N {
		if r.Prefix == "unlucky" && i == 1 {
			return made, &runtime.Error{Kind: runtime.ErrHost, Message: "no memory is left", Hint: "remove some"}
		}
		f := runtime.Fork{Name: fmt.Sprintf("%s-%d", r.From, i+1), Commit: "c1", ReadyMS: float64(i + 1)}
		m.mu.Lock()
		m.boxes[f.Name] = maps.Clone(files)
		m.mu.Unlock()
		each(f)
		made = append(made, f)
	}
	return made, nil
}

func (m *machines) Log(_ context.Context, r runtime.LogRequest) ([]runtime.Commit, error) {
	m.last = r
	return m.log, nil
}

func (m *machines) Show(_ context.Context, ref string) (runtime.Commit, error) {
	for _, c := range m.log {
		if c.ID == ref {
			return c, nil
		}
	}
	return runtime.Commit{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no commit " + ref}
}

func (m *machines) Reflog(context.Context, string) ([]runtime.ReflogEntry, error) {
	return []runtime.ReflogEntry{{Action: "checkout"}}, nil
}

func (m *machines) CreateRef(_ context.Context, kind runtime.RefKind, name, ref string) (runtime.Ref, error) {
	return runtime.Ref{Name: name, Commit: string(kind) + " of " + ref}, nil
}

func (m *machines) ListRefs(_ context.Context, kind runtime.RefKind) ([]runtime.Ref, error) {
	return []runtime.Ref{{Name: "a " + string(kind)}}, nil
}

func (m *machines) DeleteRef(_ context.Context, kind runtime.RefKind, name string) error {
	m.last = "delete " + string(kind) + " " + name
	return nil
}

func (m *machines) Build(_ context.Context, r runtime.BuildRequest) (runtime.Image, error) {
	data, err := io.ReadAll(r.Context)
	if err != nil {
		return runtime.Image{}, err
	}
	if len(data) == 0 {
		return runtime.Image{}, &runtime.Error{Kind: runtime.ErrUsage, Message: "the build context is empty"}
	}
	fmt.Fprintln(r.ProgressOut, "#1 FROM scratch")
	return runtime.Image{ID: "sha256:1", Name: r.Names[0], Tag: r.BuildArgs["V"]}, nil
}

func (m *machines) PullImage(_ context.Context, ref string, w io.Writer) (runtime.Image, error) {
	return runtime.Image{Name: ref}, nil
}

func (m *machines) BootstrapImage(_ context.Context, name string, w io.Writer) (runtime.Image, error) {
	return runtime.Image{Name: name}, nil
}

func (m *machines) ListImages(context.Context) ([]runtime.Image, error) {
	return []runtime.Image{{Name: "debian"}}, nil
}

func (m *machines) InspectImage(_ context.Context, image string) (runtime.Image, error) {
	return runtime.Image{Name: image}, nil
}

func (m *machines) RemoveImage(context.Context, string) error { return nil }

func (m *machines) Logs(_ context.Context, r runtime.LogsRequest, w io.Writer) error {
	m.last = r
	_, err := io.WriteString(w, "booted\n")
	return err
}

var _ runtime.Engine = (*machines)(nil)

// served is the real server over m, on a socket of each kind.
func served(tb testing.TB, m *machines, o api.Options) (url, socket string) {
	tb.Helper()
	o.Engine = m
	s, err := api.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	web := httptest.NewServer(s)
	tb.Cleanup(web.Close)
	path := filepath.Join(tb.TempDir(), "s.sock")
	local, err := net.Listen("unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	h := &http.Server{Handler: s}
	ended := make(chan struct{})
	go func() { defer close(ended); h.Serve(local) }()
	tb.Cleanup(func() { h.Close(); <-ended })
	tb.Cleanup(s.Drain)
	return web.URL, "unix://" + path
}

// connect is a client of a server over m.
func connect(tb testing.TB, m *machines) *sietch.Client {
	tb.Helper()
	url, _ := served(tb, m, api.Options{})
	c, err := sietch.New(sietch.Options{URL: url})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}
