package mcp

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

var testNow = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)

// fake is an engine in memory, with the verbs that the tools use. The others are
// nil and would panic. Its guests run a few commands.
type fake struct {
	runtime.Engine

	mu      sync.Mutex
	boxes   map[string]*fakeBox
	commits []runtime.Commit // oldest first
	states  map[string]fakeBox
	tags    map[string]string
	images  []string
	procs   map[string]*fakeProc
	fail    map[string]error // by verb
	dialed  func() (io.ReadWriteCloser, error)
	slow    chan struct{} // verbs that take long wait for it to close, when set
	ended   chan error    // gets the context's error of commands called "wait"
}

type fakeBox struct {
	runtime.Sandbox
	files map[string][]byte
}

type fakeProc struct {
	runtime.Process
	out []byte
}

func newFake() *fake {
	return &fake{boxes: map[string]*fakeBox{}, states: map[string]fakeBox{}, tags: map[string]string{}, procs: map[string]*fakeProc{},
		images: []string{"debian:bookworm", "agent"}, fail: map[string]error{}, ended: make(chan error, 1)}
}

// enter is the beginning of every verb: it locks, and fails as it is to.
func (f *fake) enter(verb string) (func(), error) {
	f.mu.Lock()
	if err := f.fail[verb]; err != nil {
		f.mu.Unlock()
		return func() {}, err
	}
	return f.mu.Unlock, nil
}

func (f *fake) linger(ctx context.Context) error {
	if f.slow == nil {
		return nil
	}
	select {
	case <-f.slow:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fake) box(name string) (*fakeBox, error) {
	b := f.boxes[name]
	if b == nil {
		return nil, &runtime.Error{Kind: runtime.ErrNotFound, Message: fmt.Sprintf("sandbox %s does not exist", name), Hint: "sietch ps -a lists them"}
	}
	return b, nil
}

func (f *fake) running(name string) (*fakeBox, error) {
	b, err := f.box(name)
	if err == nil && b.State != runtime.Running {
		return nil, &runtime.Error{Kind: runtime.ErrNotActive, Message: fmt.Sprintf("sandbox %s is %s", name, b.State)}
	}
	return b, err
}

func (f *fake) InspectImage(_ context.Context, image string) (runtime.Image, error) {
	if !slices.Contains(f.images, image) {
		return runtime.Image{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "image " + image + " does not exist"}
	}
	return runtime.Image{ID: "sha256:" + image, Name: image}, nil
}

func (f *fake) Run(ctx context.Context, r runtime.RunRequest) (runtime.Sandbox, error) {
	if err := f.linger(ctx); err != nil {
		return runtime.Sandbox{}, err
	}
	leave, err := f.enter("Run")
	if err != nil {
		return runtime.Sandbox{}, err
	}
	defer leave()
	b := &fakeBox{files: map[string][]byte{}}
	if id := f.resolve(r.From); id != "" {
		b = f.copied(id)
	} else if image, ok := strings.CutPrefix(r.From, "sha256:"); ok {
		b.Image = image
	} else {
		return runtime.Sandbox{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no image or commit " + r.From}
	}
	b.CPUs, b.MemoryBytes = r.CPUs, r.MemoryBytes
	b.Name, b.ID, b.State, b.IP, b.Created = r.Name, "id-"+r.Name, runtime.Running, fmt.Sprintf("10.88.0.%d", len(f.boxes)+2), testNow
	f.boxes[r.Name] = b
	return b.Sandbox, nil
}

func (f *fake) copied(commit string) *fakeBox {
	was := f.states[commit]
	return &fakeBox{Sandbox: was.Sandbox, files: maps.Clone(was.files)}
}

func (f *fake) resolve(ref string) string {
	if id, ok := f.tags[strings.TrimPrefix(ref, "tag/")]; ok {
		return id
	}
	for _, c := range f.commits {
		if c.ID == ref {
			return c.ID
		}
	}
	if b := f.boxes[ref]; b != nil {
		return b.Head.Commit
	}
	return ""
}

func (f *fake) List(context.Context, bool) ([]runtime.Sandbox, error) {
	leave, err := f.enter("List")
	if err != nil {
		return nil, err
	}
	defer leave()
	var all []runtime.Sandbox
	for _, name := range slices.Sorted(maps.Keys(f.boxes)) {
		all = append(all, f.boxes[name].Sandbox)
	}
	return all, nil
}

func (f *fake) Inspect(_ context.Context, name string) (runtime.Sandbox, error) {
	leave, err := f.enter("Inspect")
	if err != nil {
		return runtime.Sandbox{}, err
	}
	defer leave()
	b, err := f.box(name)
	if err != nil {
		return runtime.Sandbox{}, err
	}
	return b.Sandbox, nil
}

func (f *fake) state(verb, name string, from []runtime.State, to runtime.State) error {
	leave, err := f.enter(verb)
	if err != nil {
		return err
	}
	defer leave()
	b, err := f.box(name)
	if err != nil {
		return err
	}
	if b.State != to && !slices.Contains(from, b.State) {
		return &runtime.Error{Kind: runtime.ErrState, Message: fmt.Sprintf("sandbox %s is %s", name, b.State), Hint: "sietch start " + name}
	}
	b.State = to
	return nil
}

func (f *fake) Pause(_ context.Context, name string) error {
	return f.state("Pause", name, []runtime.State{runtime.Running}, runtime.Paused)
}

func (f *fake) Resume(_ context.Context, name string) error {
	return f.state("Resume", name, []runtime.State{runtime.Paused}, runtime.Running)
}

func (f *fake) Stop(_ context.Context, r runtime.StopRequest) error {
	return f.state("Stop", r.Name, []runtime.State{runtime.Running, runtime.Paused}, runtime.Stopped)
}

func (f *fake) Start(ctx context.Context, name string) (runtime.Sandbox, error) {
	if err := f.state("Start", name, []runtime.State{runtime.Stopped}, runtime.Running); err != nil {
		return runtime.Sandbox{}, err
	}
	return f.Inspect(ctx, name)
}

func (f *fake) Remove(_ context.Context, name string, _ bool) error {
	leave, err := f.enter("Remove " + name)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := f.box(name); err != nil {
		return err
	}
	delete(f.boxes, name)
	return nil
}

func (f *fake) Commit(ctx context.Context, r runtime.CommitRequest) (runtime.Commit, error) {
	if err := f.linger(ctx); err != nil {
		return runtime.Commit{}, err
	}
	leave, err := f.enter("Commit")
	if err != nil {
		return runtime.Commit{}, err
	}
	defer leave()
	b, err := f.running(r.Name)
	if err != nil {
		return runtime.Commit{}, err
	}
	c := runtime.Commit{ID: strings.Repeat(fmt.Sprintf("%x", len(f.commits)+1), 64)[:64], Sandbox: r.Name, Message: r.Message, Author: "root@host",
		Created: testNow.Add(time.Duration(len(f.commits)) * time.Minute), Kind: "full", Branch: "main", Timing: &runtime.CommitTiming{PauseMS: 4.2}}
	if b.Head.Commit != "" {
		c.Parents = []string{b.Head.Commit}
	}
	if r.DiskOnly {
		c.Kind = "disk"
	}
	f.commits = append(f.commits, c)
	b.Head = runtime.Head{Branch: "main", Commit: c.ID}
	f.states[c.ID] = fakeBox{Sandbox: b.Sandbox, files: maps.Clone(b.files)}
	return c, nil
}

func (f *fake) Checkout(ctx context.Context, r runtime.CheckoutRequest) (runtime.Sandbox, error) {
	leave, err := f.enter("Checkout")
	if err != nil {
		return runtime.Sandbox{}, err
	}
	defer leave()
	b, err := f.box(r.Name)
	if err != nil {
		return runtime.Sandbox{}, err
	}
	id := f.resolve(r.Ref)
	if id == "" {
		return runtime.Sandbox{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no such ref: " + r.Ref}
	}
	was := f.copied(id)
	b.files, b.State, b.Head = was.files, runtime.Running, runtime.Head{Branch: r.NewBranch, Commit: id}
	return b.Sandbox, nil
}

func (f *fake) Fork(ctx context.Context, r runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
	var all []runtime.Fork
	for i := range r.N {
		if err := f.fail[fmt.Sprintf("Fork %d", i+1)]; err != nil {
			return all, err
		}
		one := runtime.Fork{Name: fmt.Sprintf("%s-%d", r.Prefix, i+1), Commit: strings.Repeat("f", 64), IP: fmt.Sprintf("10.88.1.%d", i+1), ReadyMS: 100}
		each(one)
		all = append(all, one)
	}
	return all, nil
}

func (f *fake) Log(_ context.Context, r runtime.LogRequest) ([]runtime.Commit, error) {
	leave, err := f.enter("Log")
	if err != nil {
		return nil, err
	}
	defer leave()
	list := slices.Clone(f.commits)
	slices.Reverse(list)
	for i := range list {
		for tag, id := range f.tags {
			if id == list[i].ID {
				list[i].Refs = append(list[i].Refs, "tag: "+tag)
			}
		}
	}
	return list[:min(r.N, len(list))], nil
}

func (f *fake) Show(_ context.Context, ref string) (runtime.Commit, error) {
	leave, err := f.enter("Show")
	if err != nil {
		return runtime.Commit{}, err
	}
	defer leave()
	id := f.resolve(ref)
	for _, c := range f.commits {
		if c.ID == id {
			return c, nil
		}
	}
	return runtime.Commit{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "no such ref"}
}

func (f *fake) ListRefs(_ context.Context, kind runtime.RefKind) ([]runtime.Ref, error) {
	leave, err := f.enter("ListRefs")
	if err != nil || kind != runtime.TagRef {
		leave()
		return nil, err
	}
	defer leave()
	var all []runtime.Ref
	for name, id := range f.tags {
		all = append(all, runtime.Ref{Name: name, Commit: id})
	}
	return all, nil
}

func (f *fake) CreateRef(_ context.Context, _ runtime.RefKind, name, ref string) (runtime.Ref, error) {
	leave, err := f.enter("CreateRef")
	if err != nil {
		return runtime.Ref{}, err
	}
	defer leave()
	f.tags[name] = ref
	return runtime.Ref{Name: name, Commit: ref}, nil
}

// Exec is a guest's shell that knows the line that is its last argument:
//
//	say TEXT, fail TEXT (exit status 3), many N (lines), cat PATH, wait, png, nothing
func (f *fake) Exec(ctx context.Context, r runtime.ExecRequest, s runtime.ExecIO) (runtime.ExitStatus, error) {
	leave, err := f.enter("Exec")
	if err != nil {
		return runtime.ExitStatus{}, err
	}
	b, err := f.running(r.Name)
	leave()
	if err != nil {
		return runtime.ExitStatus{}, err
	}
	line := r.Args[len(r.Args)-1]
	if strings.Contains(strings.Join(r.Args, " "), "import -silent") {
		line = string(b.files["/display"])
	}
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "say":
		io.WriteString(s.Stdout, rest)
	case "fail":
		io.WriteString(s.Stdout, rest)
		return runtime.ExitStatus{Code: 3}, nil
	case "killed":
		return runtime.ExitStatus{Code: 137, Signal: 9, Error: "killed by signal 9"}, nil
	case "many":
		n := 0
		fmt.Sscan(rest, &n)
		for i := range n {
			fmt.Fprintf(s.Stdout, "line %09d\n", i)
		}
	case "wait":
		<-ctx.Done()
		f.ended <- ctx.Err()
		return runtime.ExitStatus{}, ctx.Err()
	case "fall":
		panic("a bug")
	case "none":
		io.WriteString(s.Stderr, "there is no X display\n")
		return runtime.ExitStatus{Code: 66}, nil
	case "bare":
		io.WriteString(s.Stderr, "nothing is installed that photographs :0\n")
		return runtime.ExitStatus{Code: 69}, nil
	}
	return runtime.ExitStatus{}, nil
}

func (f *fake) StartProcess(_ context.Context, r runtime.ExecRequest) (runtime.Process, error) {
	leave, err := f.enter("StartProcess")
	if err != nil {
		return runtime.Process{}, err
	}
	defer leave()
	if _, err := f.running(r.Name); err != nil {
		return runtime.Process{}, err
	}
	p := &fakeProc{Process: runtime.Process{ID: fmt.Sprintf("p%d", len(f.procs)+1), PID: 300 + len(f.procs), Args: r.Args, Running: true}}
	f.procs[p.ID] = p
	return p.Process, nil
}

// write makes a process write, end ends it.
func (f *fake) write(id, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.procs[id]
	p.out = append(p.out, text...)
	p.OutputBytes = int64(len(p.out))
}

func (f *fake) end(id string, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.procs[id]
	p.Running, p.ExitCode = false, &code
}

func (f *fake) InspectProcess(_ context.Context, name, id string) (runtime.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.procs[id]
	if p == nil {
		return runtime.Process{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: fmt.Sprintf("process %s does not exist in %s", id, name), Hint: "sietch process ls " + name}
	}
	return p.Process, nil
}

func (f *fake) ProcessOutput(_ context.Context, r runtime.ProcessOutputRequest, w io.Writer) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.procs[r.ID]
	at := max(r.Offset, p.OutputFrom)
	if at > r.Offset {
		r.Skipped(at - r.Offset)
	}
	if at > int64(len(p.out)) {
		return at, nil
	}
	n, err := w.Write(p.out[at:min(at+r.Limit, int64(len(p.out)))])
	return at + int64(n), err
}

func (f *fake) MakeDir(context.Context, string, string, uint32, bool) error { return nil }

func (f *fake) CopyIn(_ context.Context, r runtime.CopyInRequest, in io.Reader) error {
	leave, err := f.enter("CopyIn")
	if err != nil {
		return err
	}
	defer leave()
	b, err := f.running(r.Name)
	if err != nil {
		return err
	}
	archive := tar.NewReader(in)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if b.files[path.Join(r.Path, h.Name)], err = io.ReadAll(archive); err != nil {
			return err
		}
	}
}

func (f *fake) CopyOut(_ context.Context, r runtime.CopyOutRequest, out io.Writer) error {
	leave, err := f.enter("CopyOut")
	if err != nil {
		return err
	}
	defer leave()
	b, err := f.running(r.Name)
	if err != nil {
		return err
	}
	data, ok := b.files[r.Path]
	if !ok {
		return &runtime.Error{Kind: runtime.ErrNotFound, Message: "copy " + r.Path + ": no such file or directory"}
	}
	archive := tar.NewWriter(out)
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Base(r.Path), Size: int64(len(data)), Mode: 0o644}); err != nil {
		return err
	}
	if _, err := io.Copy(archive, bytes.NewReader(data)); err != nil {
		return err
	}
	return archive.Close()
}

func (f *fake) AddPort(_ context.Context, name string, p runtime.Port) (runtime.Port, error) {
	leave, err := f.enter("AddPort")
	if err != nil {
		return p, err
	}
	defer leave()
	b, err := f.box(name)
	if err != nil {
		return p, err
	}
	if p.Host == 0 {
		p.Host = 40000
	}
	b.Ports = append(b.Ports, p)
	return p, nil
}

// vncPort is where a fake guest's VNC server listens, if it has one.
const vncPort = 5901

func (f *fake) DialPort(_ context.Context, name string, port uint16) (io.ReadWriteCloser, error) {
	if f.dialed == nil || port != vncPort {
		return nil, &runtime.Error{Kind: runtime.ErrState, Message: fmt.Sprintf("nothing listens on port %d of sandbox %s", port, name)}
	}
	return f.dialed()
}
