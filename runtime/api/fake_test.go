package api

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

var testNow = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)

// fakeEngine is an engine over a small world. It records every call as
// `Verb {request}`, and fails verbs as fails says.
type fakeEngine struct {
	mu    sync.Mutex
	calls []string
	fails map[string]error
	boxes map[string]runtime.Sandbox
	files map[string]string // NAME:/path
	tags  []runtime.Ref
	next  int

	// Hooks of single tests; nil: the default below.
	exec    func(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error)
	run     func(ctx context.Context, r runtime.RunRequest) error
	dial    func(port uint16) (net.Conn, error)
	events  func(ctx context.Context, each func(runtime.Event) error) error
	process runtime.Process
}

var _ runtime.Engine = (*fakeEngine)(nil)

func newFake() *fakeEngine {
	f := &fakeEngine{fails: map[string]error{}, boxes: map[string]runtime.Sandbox{}, files: map[string]string{}}
	f.add("box", runtime.Running, nil)
	f.add("lab", runtime.Paused, nil)
	f.add("old", runtime.Stopped, nil)
	f.files["box:/etc/motd"] = "hello\n"
	f.files["box:/bin/raw"] = "\x00\xff\xfe"
	f.tags = []runtime.Ref{{Name: "v1", Commit: strings.Repeat("1", 64)}}
	f.process = runtime.Process{ID: "p1", Args: []string{"sleep", "9"}, PID: 7, Started: testNow, Running: true, OutputBytes: 5}
	return f
}

func (f *fakeEngine) add(name string, state runtime.State, labels map[string]string) {
	f.next++
	f.boxes[name] = runtime.Sandbox{Name: name, ID: fmt.Sprintf("id%d", f.next), State: state, Image: "debian:bookworm", IP: "10.213.0.5", Network: "nat",
		Ports: []runtime.Port{{HostIP: "0.0.0.0", Host: 3000, Guest: 5901, Protocol: "tcp"}}, VMM: "qemu", Accel: "tcg", CPUs: 1,
		Head: runtime.Head{Branch: name, Commit: strings.Repeat("a", 64)}, MemoryBytes: 1 << 29, DiskBytes: 1 << 32, Labels: labels, Created: testNow.Add(time.Duration(f.next) * time.Minute)}
}

// call records a verb and says whether it fails.
func (f *fakeEngine) call(verb string, request any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := json.Marshal(request)
	if err != nil {
		data = []byte(`"` + err.Error() + `"`)
	}
	f.calls = append(f.calls, verb+" "+string(data))
	return f.fails[verb]
}

func (f *fakeEngine) called(verb string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, c := range f.calls {
		if strings.HasPrefix(c, verb+" ") {
			all = append(all, strings.TrimPrefix(c, verb+" "))
		}
	}
	return all
}

func (f *fakeEngine) box(name string) (runtime.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.boxes[name]
	if !ok {
		return b, &runtime.Error{Kind: runtime.ErrNotFound, Message: "sandbox " + name + " does not exist", Hint: "sietch ps -a lists them"}
	}
	return b, nil
}

func (f *fakeEngine) set(name string, state runtime.State) error {
	b, err := f.box(name)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b.State = state
	f.boxes[name] = b
	return nil
}

// running is what talks to a guest.
func (f *fakeEngine) running(name string) error {
	b, err := f.box(name)
	if err == nil && b.State != runtime.Running {
		err = &runtime.Error{Kind: runtime.ErrState, Message: "sandbox " + name + " is " + string(b.State), Hint: "sietch start " + name}
	}
	return err
}

var fakeImage = runtime.Image{ID: "sha256:ab12", Name: "debian", Tag: "bookworm", Created: testNow, SizeBytes: 1 << 20, RootfsDigest: "sha256:cd"}

func (f *fakeEngine) Build(ctx context.Context, r runtime.BuildRequest) (runtime.Image, error) {
	data, err := io.ReadAll(r.Context)
	if err != nil {
		return fakeImage, err
	}
	out := r.ProgressOut
	r.Context, r.ProgressOut = nil, nil
	err = f.call("Build", []any{r, len(data)})
	if err == nil {
		fmt.Fprint(out, "#1 one\n#2 two")
	}
	return fakeImage, err
}
func (f *fakeEngine) ListImages(context.Context) ([]runtime.Image, error) {
	return []runtime.Image{fakeImage}, f.call("ListImages", nil)
}
func (f *fakeEngine) InspectImage(_ context.Context, image string) (runtime.Image, error) {
	if err := f.call("InspectImage", image); err != nil {
		return fakeImage, err
	}
	if image != "debian:bookworm" && image != fakeImage.ID && image != "docker.io/library/debian" {
		return fakeImage, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no image " + image}
	}
	return fakeImage, nil
}
func (f *fakeEngine) RemoveImage(_ context.Context, image string) error {
	return f.call("RemoveImage", image)
}
func (f *fakeEngine) TagImage(_ context.Context, image, name string) (runtime.Image, error) {
	return fakeImage, f.call("TagImage", []string{image, name})
}
func (f *fakeEngine) ImportImage(_ context.Context, r runtime.ImportRequest) (runtime.Image, error) {
	data, _ := io.ReadAll(r.Reader)
	return fakeImage, f.call("ImportImage", []any{r.Name, r.Format, len(data)})
}
func (f *fakeEngine) ExportImage(_ context.Context, image, format string, w io.Writer) error {
	if err := f.call("ExportImage", []string{image, format}); err != nil {
		return err
	}
	_, err := io.WriteString(w, "archive")
	return err
}
func (f *fakeEngine) PullImage(_ context.Context, ref string, w io.Writer) (runtime.Image, error) {
	io.WriteString(w, "pulling\n")
	return fakeImage, f.call("PullImage", ref)
}
func (f *fakeEngine) BootstrapImage(_ context.Context, name string, w io.Writer) (runtime.Image, error) {
	return fakeImage, f.call("BootstrapImage", name)
}

func (f *fakeEngine) Run(ctx context.Context, r runtime.RunRequest) (runtime.Sandbox, error) {
	if err := f.call("Run", r); err != nil {
		return runtime.Sandbox{}, err
	}
	if f.run != nil {
		if err := f.run(ctx, r); err != nil {
			return runtime.Sandbox{}, err
		}
	}
	f.mu.Lock()
	if r.Name == "" {
		r.Name = fmt.Sprintf("made%d", f.next)
	}
	f.add(r.Name, runtime.Running, r.Labels)
	b := f.boxes[r.Name]
	b.Created = time.Now()
	f.boxes[r.Name] = b
	f.mu.Unlock()
	b.Timing = &runtime.BootTiming{ReadyMS: 12.5}
	return b, nil
}
func (f *fakeEngine) List(_ context.Context, all bool) ([]runtime.Sandbox, error) {
	if err := f.call("List", all); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []runtime.Sandbox
	for _, b := range f.boxes {
		if all || b.State == runtime.Running || b.State == runtime.Paused {
			list = append(list, b)
		}
	}
	return list, nil
}
func (f *fakeEngine) Inspect(_ context.Context, name string) (runtime.Sandbox, error) {
	if err := f.call("Inspect", name); err != nil {
		return runtime.Sandbox{}, err
	}
	return f.box(name)
}
func (f *fakeEngine) Logs(ctx context.Context, r runtime.LogsRequest, w io.Writer) error {
	if err := f.call("Logs", r); err != nil {
		return err
	}
	_, err := io.WriteString(w, "console\n")
	if err == nil && r.Follow {
		<-ctx.Done()
	}
	return err
}
func (f *fakeEngine) Exec(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
	if err := f.call("Exec", r); err != nil {
		return runtime.ExitStatus{}, err
	}
	if err := f.running(r.Name); err != nil {
		return runtime.ExitStatus{}, err
	}
	if f.exec != nil {
		return f.exec(ctx, r, stdio)
	}
	io.WriteString(stdio.Stdout, "out\n")
	if stdio.Stderr != nil {
		io.WriteString(stdio.Stderr, "err\n")
	}
	return runtime.ExitStatus{Code: 3}, nil
}
func (f *fakeEngine) CopyIn(_ context.Context, r runtime.CopyInRequest, in io.Reader) error {
	if err := f.call("CopyIn", r); err != nil {
		return err
	}
	if err := f.running(r.Name); err != nil {
		return err
	}
	archive := tar.NewReader(in)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read tar: %w", err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.files[r.Name+":"+strings.TrimSuffix(r.Path, "/")+"/"+h.Name] = string(data)
		f.mu.Unlock()
	}
}
func (f *fakeEngine) CopyOut(_ context.Context, r runtime.CopyOutRequest, out io.Writer) error {
	if err := f.call("CopyOut", r); err != nil {
		return err
	}
	if err := f.running(r.Name); err != nil {
		return err
	}
	f.mu.Lock()
	data, ok := f.files[r.Name+":"+r.Path]
	f.mu.Unlock()
	if !ok {
		return &runtime.Error{Kind: runtime.ErrNotFound, Message: r.Path + " does not exist"}
	}
	archive := tar.NewWriter(out)
	base := r.Path[strings.LastIndex(r.Path, "/")+1:]
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: base, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	if _, err := io.WriteString(archive, data); err != nil {
		return err
	}
	return archive.Close()
}
func (f *fakeEngine) StatPath(_ context.Context, name, path string) (runtime.PathStat, error) {
	return runtime.PathStat{Name: path, SizeBytes: 6, Mode: 0o100644, Modified: testNow}, f.call("StatPath", []string{name, path})
}
func (f *fakeEngine) Pause(_ context.Context, name string) error {
	if err := f.call("Pause", name); err != nil {
		return err
	}
	return f.set(name, runtime.Paused)
}
func (f *fakeEngine) Resume(_ context.Context, name string) error {
	if err := f.call("Resume", name); err != nil {
		return err
	}
	return f.set(name, runtime.Running)
}
func (f *fakeEngine) Stop(_ context.Context, r runtime.StopRequest) error {
	if err := f.call("Stop", r); err != nil {
		return err
	}
	return f.set(r.Name, runtime.Stopped)
}
func (f *fakeEngine) Start(_ context.Context, name string) (runtime.Sandbox, error) {
	if err := f.call("Start", name); err != nil {
		return runtime.Sandbox{}, err
	}
	if err := f.set(name, runtime.Running); err != nil {
		return runtime.Sandbox{}, err
	}
	return f.box(name)
}
func (f *fakeEngine) Remove(_ context.Context, name string, force bool) error {
	if err := f.call("Remove", []any{name, force}); err != nil {
		return err
	}
	b, err := f.box(name)
	if err == nil && b.State == runtime.Running && !force {
		err = &runtime.Error{Kind: runtime.ErrBusy, Message: "sandbox " + name + " is running"}
	}
	if err == nil {
		f.mu.Lock()
		delete(f.boxes, name)
		f.mu.Unlock()
	}
	return err
}

func (f *fakeEngine) StartProcess(_ context.Context, r runtime.ExecRequest) (runtime.Process, error) {
	if err := f.call("StartProcess", r); err != nil {
		return runtime.Process{}, err
	}
	return f.process, f.running(r.Name)
}
func (f *fakeEngine) ListProcesses(_ context.Context, name string) ([]runtime.Process, error) {
	return []runtime.Process{f.process}, f.call("ListProcesses", name)
}
func (f *fakeEngine) InspectProcess(_ context.Context, name, id string) (runtime.Process, error) {
	if id != f.process.ID {
		return runtime.Process{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no process " + id}
	}
	return f.process, f.call("InspectProcess", id)
}
func (f *fakeEngine) WaitProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	if err := f.call("WaitProcess", id); err != nil {
		return runtime.Process{}, err
	}
	if f.process.Running {
		<-ctx.Done()
		return runtime.Process{}, context.Cause(ctx)
	}
	return f.process, nil
}
func (f *fakeEngine) ProcessOutput(_ context.Context, r runtime.ProcessOutputRequest, w io.Writer) (int64, error) {
	if err := f.call("ProcessOutput", r); err != nil {
		return 0, err
	}
	all := "01234567"
	n, err := io.WriteString(w, all[min(int(r.Offset), len(all)):])
	return r.Offset + int64(n), err
}
func (f *fakeEngine) SignalProcess(_ context.Context, name, id string, sig syscall.Signal) error {
	return f.call("SignalProcess", []any{id, int(sig)})
}
func (f *fakeEngine) RemoveProcess(_ context.Context, name, id string) error {
	return f.call("RemoveProcess", id)
}

func (f *fakeEngine) ListDir(_ context.Context, name, path string) ([]runtime.PathStat, error) {
	return nil, f.call("ListDir", path)
}
func (f *fakeEngine) MakeDir(_ context.Context, name, path string, mode uint32, parents bool) error {
	return f.call("MakeDir", []any{path, mode, parents})
}
func (f *fakeEngine) RemovePath(_ context.Context, name, path string, recursive bool) error {
	return f.call("RemovePath", []any{path, recursive})
}
func (f *fakeEngine) WatchPath(_ context.Context, r runtime.WatchRequest, each func(runtime.FileEvent) error) error {
	started := r.Started
	r.Started = nil
	if err := f.call("WatchPath", []any{r.Path, r.Recursive}); err != nil {
		return err
	}
	started()
	if err := each(runtime.FileEvent{Path: "/tmp/x", Op: "create"}); err != nil {
		return err
	}
	return &runtime.Error{Kind: runtime.ErrState, Message: "the machine went"}
}
func (f *fakeEngine) AddPort(_ context.Context, name string, p runtime.Port) (runtime.Port, error) {
	if p.Host == 0 {
		p.Host = 40000
	}
	return p, f.call("AddPort", p)
}
func (f *fakeEngine) RemovePort(_ context.Context, name string, p runtime.Port) error {
	return f.call("RemovePort", p)
}
func (f *fakeEngine) DialPort(_ context.Context, name string, port uint16) (io.ReadWriteCloser, error) {
	if err := f.call("DialPort", port); err != nil {
		return nil, err
	}
	if err := f.running(name); err != nil {
		return nil, err
	}
	return f.dial(port)
}
func (f *fakeEngine) Events(ctx context.Context, r runtime.EventsRequest, each func(runtime.Event) error) error {
	if err := f.call("Events", r); err != nil {
		return err
	}
	if f.events != nil {
		return f.events(ctx, each)
	}
	return each(runtime.Event{ID: 7, Time: testNow, Type: "sandbox.run", Sandbox: "box"})
}

func (f *fakeEngine) commit(sandbox string) runtime.Commit {
	return runtime.Commit{ID: strings.Repeat("1", 64), Sandbox: sandbox, Image: "debian:bookworm", Created: time.Now(), Kind: "full"}
}
func (f *fakeEngine) Commit(_ context.Context, r runtime.CommitRequest) (runtime.Commit, error) {
	if err := f.call("Commit", r); err != nil {
		return runtime.Commit{}, err
	}
	b, err := f.box(r.Name)
	if err != nil {
		return runtime.Commit{}, err
	}
	c := f.commit(r.Name)
	f.mu.Lock()
	b.Head.Commit = c.ID
	f.boxes[r.Name] = b
	f.mu.Unlock()
	c.Timing = &runtime.CommitTiming{PauseMS: 1, TotalMS: 2}
	return c, nil
}
func (f *fakeEngine) Fork(_ context.Context, r runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
	err := f.call("Fork", r)
	var list []runtime.Fork
	for i := range r.N {
		fork := runtime.Fork{Name: fmt.Sprintf("f-%d", i+1), Commit: "c", IP: "10.0.0.9", ReadyMS: 3}
		each(fork)
		list = append(list, fork)
		f.mu.Lock()
		f.add(fork.Name, runtime.Running, r.Labels)
		f.mu.Unlock()
	}
	return list, err
}
func (f *fakeEngine) Checkout(_ context.Context, r runtime.CheckoutRequest) (runtime.Sandbox, error) {
	if err := f.call("Checkout", r); err != nil {
		return runtime.Sandbox{}, err
	}
	if err := f.set(r.Name, runtime.Running); err != nil {
		return runtime.Sandbox{}, err
	}
	return f.box(r.Name)
}
func (f *fakeEngine) Log(_ context.Context, r runtime.LogRequest) ([]runtime.Commit, error) {
	return []runtime.Commit{f.commit("box")}, f.call("Log", r)
}
func (f *fakeEngine) Show(_ context.Context, ref string) (runtime.Commit, error) {
	if err := f.call("Show", ref); err != nil {
		return runtime.Commit{}, err
	}
	if ref == "nowhere" {
		return runtime.Commit{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no such commit or ref"}
	}
	if _, err := f.box(ref); err == nil {
		return f.commit(ref), nil
	}
	return f.commit("box"), nil
}
func (f *fakeEngine) Reflog(_ context.Context, name string) ([]runtime.ReflogEntry, error) {
	return []runtime.ReflogEntry{{Index: 0, Commit: "c", Action: "commit", Time: testNow}}, f.call("Reflog", name)
}
func (f *fakeEngine) ListRefs(_ context.Context, kind runtime.RefKind) ([]runtime.Ref, error) {
	if err := f.call("ListRefs", kind); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if kind == runtime.TagRef {
		return append([]runtime.Ref(nil), f.tags...), nil
	}
	return []runtime.Ref{{Name: "main", Commit: "c", Sandbox: "box"}}, nil
}
func (f *fakeEngine) CreateRef(_ context.Context, kind runtime.RefKind, name, ref string) (runtime.Ref, error) {
	if err := f.call("CreateRef", []any{kind, name, ref}); err != nil {
		return runtime.Ref{}, err
	}
	r := runtime.Ref{Name: name, Commit: ref}
	if kind == runtime.TagRef {
		f.mu.Lock()
		f.tags = append(f.tags, r)
		f.mu.Unlock()
	}
	return r, nil
}
func (f *fakeEngine) DeleteRef(_ context.Context, kind runtime.RefKind, name string) error {
	return f.call("DeleteRef", []any{kind, name})
}
func (f *fakeEngine) RenameBranch(_ context.Context, from, to string) error {
	return f.call("RenameBranch", []string{from, to})
}
func (f *fakeEngine) GC(_ context.Context, dryRun bool) (runtime.GCReport, error) {
	return runtime.GCReport{DryRun: dryRun, Commits: 2}, f.call("GC", dryRun)
}
func (f *fakeEngine) Fsck(context.Context) (runtime.FsckReport, error) {
	return runtime.FsckReport{Commits: 3}, f.call("Fsck", nil)
}
func (f *fakeEngine) DiskUsage(context.Context) (runtime.UsageReport, error) {
	return runtime.UsageReport{StoreBytes: 5}, f.call("DiskUsage", nil)
}
func (f *fakeEngine) Doctor(context.Context) (runtime.DoctorReport, error) {
	return runtime.DoctorReport{OK: true, Checks: []runtime.DoctorCheck{{Name: "root", Status: "ok"}}}, f.call("Doctor", nil)
}
func (f *fakeEngine) Close() error { return nil }

// oneFile is a tar of one file.
func oneFile(name, data string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data))})
	io.WriteString(w, data)
	w.Close()
	return b.Bytes()
}
