package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// testNow is the present of every test.
var testNow = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)

// fake is an engine over a small world that no verb changes. It writes every
// request to DATA/calls, one "Verb {…}" a line, so that a script can see what
// the command line made of its words, and fails as DATA/fail says: lines of
//
//	VERB|KIND|MESSAGE|HINT
type fake struct {
	dir  string
	opts runtime.Options
	mu   sync.Mutex

	ticks int
}

var _ runtime.Engine = (*fake)(nil)

func openFake(_ context.Context, o runtime.Options) (runtime.Engine, error) {
	f := &fake{dir: o.DataDir, opts: o}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, err
	}
	o.Logger.Info("fake engine", "vmm", o.VMM)
	return f, f.call("Open", nil)
}

var failures = map[string]error{
	"usage": runtime.ErrUsage, "notfound": runtime.ErrNotFound, "busy": runtime.ErrBusy, "corrupt": runtime.ErrCorrupt,
	"host": runtime.ErrHost, "state": runtime.ErrState, "notactive": runtime.ErrNotActive, "plain": nil,
}

// call records a request and returns the failure that is wanted for it.
func (f *fake) call(verb string, request any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := verb
	if request != nil {
		data, err := json.Marshal(request)
		if err != nil {
			return err
		}
		line += " " + strings.ReplaceAll(terse(data), filepath.Dir(f.dir), "WORK")
	}
	log, err := os.OpenFile(filepath.Join(f.dir, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if _, err := fmt.Fprintln(log, line); err != nil {
		return err
	}
	want, err := os.ReadFile(filepath.Join(f.dir, "fail"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(want)) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		if parts[0] != verb {
			continue
		}
		kind, known := failures[parts[1]]
		if !known {
			return fmt.Errorf("fail: no kind %q", parts[1])
		}
		return fmt.Errorf("do it: %w", &runtime.Error{Kind: kind, Message: parts[2], Hint: parts[3]})
	}
	return nil
}

// terse leaves out of a JSON object what is zero.
func terse(data []byte) string {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err.Error()
	}
	if m, ok := v.(map[string]any); ok {
		for k, x := range m {
			if x == nil || x == "" || x == false || x == 0.0 {
				delete(m, k)
			}
		}
	}
	short, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(short)
}

func (f *fake) missing(what, name string) error {
	return &runtime.Error{Kind: runtime.ErrNotFound, Message: fmt.Sprintf("%s %q does not exist", what, name), Hint: "see sietch ps -a"}
}

// --- images

var fakeImages = []runtime.Image{
	{ID: "sha256:" + strings.Repeat("ab12", 16), Name: "agent", Tag: "latest", Created: testNow.Add(-2 * time.Hour), SizeBytes: 300 << 20, RootfsDigest: "sha256:cd"},
	{ID: "sha256:" + strings.Repeat("0f", 32), Name: "debian", Tag: "bookworm", Created: testNow.Add(-48 * time.Hour), SizeBytes: 120 << 20, RootfsDigest: "sha256:ef",
		Config: runtime.ImageConfig{Env: []string{"PATH=/bin"}, Cmd: []string{"bash"}}},
}

func (f *fake) Build(ctx context.Context, r runtime.BuildRequest) (runtime.Image, error) {
	out := r.ProgressOut
	r.ProgressOut = nil
	if r.ContextPath != "" {
		if err := f.archive(&r); err != nil {
			return runtime.Image{}, err
		}
	}
	if r.Context != nil {
		text, err := io.ReadAll(r.Context)
		if err != nil {
			return runtime.Image{}, err
		}
		r.Context = nil
		if err := f.call("BuildContext", string(text)); err != nil {
			return runtime.Image{}, err
		}
	}
	if err := f.call("Build", r); err != nil {
		return runtime.Image{}, err
	}
	if r.Progress != "quiet" {
		fmt.Fprintln(out, "#1 building")
	}
	return fakeImages[0], nil
}

// archive puts in place of an archive the names in it, and the texts of secrets
// in that of their files.
func (f *fake) archive(r *runtime.BuildRequest) error {
	var names []string
	in := tar.NewReader(r.Context)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		names = append(names, h.Name)
	}
	slices.Sort(names)
	r.Context = strings.NewReader(strings.Join(names, " "))
	for i, s := range r.Secrets {
		text, err := os.ReadFile(s.Source)
		if err != nil {
			return err
		}
		r.Secrets[i].Source = "text " + string(text)
	}
	slices.SortFunc(r.Secrets, func(a, b runtime.BuildSecret) int { return strings.Compare(a.ID, b.ID) })
	return nil
}

func (f *fake) ListImages(ctx context.Context) ([]runtime.Image, error) {
	return fakeImages, f.call("ListImages", nil)
}

func (f *fake) InspectImage(ctx context.Context, image string) (runtime.Image, error) {
	if err := f.call("InspectImage", image); err != nil {
		return runtime.Image{}, err
	}
	for _, i := range fakeImages {
		if image == i.Name || image == i.Name+":"+i.Tag {
			return i, nil
		}
	}
	return runtime.Image{}, f.missing("image", image)
}

func (f *fake) RemoveImage(ctx context.Context, image string) error {
	return f.call("RemoveImage", image)
}

func (f *fake) TagImage(ctx context.Context, image, name string) (runtime.Image, error) {
	return fakeImages[1], f.call("TagImage", []string{image, name})
}

func (f *fake) ImportImage(ctx context.Context, r runtime.ImportRequest) (runtime.Image, error) {
	data := ""
	if r.Reader != nil {
		b, err := io.ReadAll(r.Reader)
		if err != nil {
			return runtime.Image{}, err
		}
		data, r.Reader = string(b), nil
	}
	return fakeImages[1], f.call("ImportImage", []any{r, data})
}

func (f *fake) ExportImage(ctx context.Context, image, format string, w io.Writer) error {
	if _, err := io.WriteString(w, "archive of "+image); err != nil {
		return err
	}
	return f.call("ExportImage", []string{image, format})
}

func (f *fake) PullImage(ctx context.Context, ref string, progress io.Writer) (runtime.Image, error) {
	fmt.Fprintln(progress, "pulling "+ref)
	return fakeImages[1], f.call("PullImage", ref)
}

func (f *fake) BootstrapImage(ctx context.Context, name string, progress io.Writer) (runtime.Image, error) {
	fmt.Fprintln(progress, "bootstrapping "+name)
	return fakeImages[1], f.call("BootstrapImage", name)
}

// --- sandboxes

func ptr[T any](v T) *T { return &v }

var fakeSandboxes = []runtime.Sandbox{
	{Name: "box", ID: "s1", State: runtime.Running, Image: "agent:latest", Head: runtime.Head{Branch: "main", Commit: commitID("d")}, IP: "10.88.0.2",
		Network: "nat", Ports: []runtime.Port{{Host: 8080, Guest: 80, Protocol: "tcp"}, {HostIP: "::1", Host: 53, Guest: 53, Protocol: "udp"}},
		VMM: "qemu", Accel: "tcg", CPUs: 1, MemoryBytes: 512 << 20, DiskBytes: 4 << 30, Created: testNow.Add(-10 * time.Minute), PID: 4711, Main: runtime.Main{Running: true}, Dir: "/data/s1"},
	{Name: "lab", ID: "s2", State: runtime.Paused, Image: "debian:bookworm", Head: runtime.Head{Commit: commitID("b")}, IP: "10.88.0.3", Created: testNow.Add(-26 * time.Hour)},
	{Name: "old", ID: "s3", State: runtime.Stopped, Image: "debian:bookworm", Created: testNow.Add(-40 * 24 * time.Hour), Main: runtime.Main{ExitCode: ptr(3)}},
}

func (f *fake) Run(ctx context.Context, r runtime.RunRequest) (runtime.Sandbox, error) {
	if err := f.call("Run", r); err != nil {
		return runtime.Sandbox{}, err
	}
	switch r.From {
	case "slow": // until interrupted; then it takes its time to undo
		<-ctx.Done()
		return runtime.Sandbox{}, fmt.Errorf("boot %s: %w", r.Name, ctx.Err())
	case "stubborn":
		select {}
	case "remarks":
		f.opts.Remark("no KVM here, using TCG")
	}
	s := fakeSandboxes[0]
	if r.Name != "" {
		s.Name = r.Name
	}
	s.Timing = &runtime.BootTiming{ReadyMS: 812.5}
	return s, nil
}

func (f *fake) List(ctx context.Context, all bool) ([]runtime.Sandbox, error) {
	if err := f.call("List", all); err != nil {
		return nil, err
	}
	if data, err := os.ReadFile(filepath.Join(f.dir, "sandboxes")); err == nil { // how many there are
		n := 0
		_, err := fmt.Sscan(string(data), &n)
		return fakeSandboxes[:n], err
	}
	if !all {
		return fakeSandboxes[:2], nil
	}
	return fakeSandboxes, nil
}

func (f *fake) Inspect(ctx context.Context, name string) (runtime.Sandbox, error) {
	if err := f.call("Inspect", name); err != nil {
		return runtime.Sandbox{}, err
	}
	i := slices.IndexFunc(fakeSandboxes, func(s runtime.Sandbox) bool { return s.Name == name })
	if i < 0 {
		return runtime.Sandbox{}, f.missing("sandbox", name)
	}
	return fakeSandboxes[i], nil
}

func (f *fake) Logs(ctx context.Context, r runtime.LogsRequest, w io.Writer) error {
	if err := f.call("Logs", r); err != nil {
		return err
	}
	text := "[    0.0] Linux\n"
	if r.Source == "main" {
		text = "one\r\n\"two\"\n\nno end"
	}
	_, err := io.WriteString(w, text)
	return err
}

func (f *fake) Stats(ctx context.Context, names []string) ([]runtime.Stats, error) {
	box := runtime.Stats{Name: "box", State: runtime.Running, Time: f.tick(),
		CPU: runtime.CPUStats{TimeMS: 1000 + 500*float64(f.ticks), CPUs: 2, Limit: 1.5, Threads: 5},
		Memory: runtime.MemoryStats{SizeBytes: 512 << 20, LimitBytes: 256 << 20, RSSBytes: 200 << 20, PSSBytes: 90 << 20,
			SharedBytes: 150 << 20, PrivateBytes: 50 << 20},
		Guest: &runtime.GuestStats{TotalBytes: 480 << 20, AvailableBytes: 180 << 20, HeldBytes: 256 << 20, Load: [3]float64{0.5, 0.25, 0.1},
			RxBytes: 2 << 20, TxBytes: 3 << 20, DiskBytes: 4 << 30, DiskFreeBytes: 3 << 30}}
	lab := runtime.Stats{Name: "lab", State: runtime.Paused, Time: box.Time, CPU: runtime.CPUStats{TimeMS: 700, CPUs: 1, Threads: 4},
		Memory: runtime.MemoryStats{SizeBytes: 512 << 20, RSSBytes: 100 << 20, PSSBytes: 60 << 20}}
	if len(names) == 1 {
		return []runtime.Stats{box}, f.verb("Stats", names[0])
	}
	return []runtime.Stats{box, lab}, f.call("Stats", names)
}

// tick is a clock that goes on by a second each time.
func (f *fake) tick() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ticks++
	return testNow.Add(time.Duration(f.ticks) * time.Second)
}

func (f *fake) Resize(ctx context.Context, r runtime.ResizeRequest) (runtime.Sandbox, error) {
	s := fakeSandboxes[0]
	s.Name, s.CPULimit, s.MemoryLimitBytes = r.Name, r.CPUs, r.MemoryBytes
	return s, f.call("Resize", r)
}

func (f *fake) Reclaim(ctx context.Context, name string) (runtime.ReclaimReport, error) {
	return runtime.ReclaimReport{Name: name, ReclaimedBytes: 300 << 20, PrivateBytes: 40 << 20}, f.verb("Reclaim", name)
}

func (f *fake) Pause(ctx context.Context, name string) error  { return f.verb("Pause", name) }
func (f *fake) Resume(ctx context.Context, name string) error { return f.verb("Resume", name) }

func (f *fake) verb(verb, name string) error {
	if err := f.call(verb, name); err != nil {
		return err
	}
	if strings.HasPrefix(name, "no-") {
		return f.missing("sandbox", name)
	}
	return nil
}

func (f *fake) Stop(ctx context.Context, r runtime.StopRequest) error { return f.call("Stop", r) }

func (f *fake) Start(ctx context.Context, name string) (runtime.Sandbox, error) {
	s := fakeSandboxes[0]
	s.Name = name
	return s, f.verb("Start", name)
}

func (f *fake) Remove(ctx context.Context, name string, force bool) error {
	if err := f.call("Remove", []any{name, force}); err != nil {
		return err
	}
	if strings.HasPrefix(name, "no-") {
		return f.missing("sandbox", name)
	}
	return nil
}

// Exec is a guest with a few programs.
func (f *fake) Exec(ctx context.Context, r runtime.ExecRequest, s runtime.ExecIO) (runtime.ExitStatus, error) {
	if err := f.call("Exec", r); err != nil {
		return runtime.ExitStatus{}, err
	}
	if s.Started != nil {
		s.Started()
	}
	out := func(format string, args ...any) { fmt.Fprintf(s.Stdout, format, args...) }
	switch r.Args[0] {
	case "echo":
		out("%s\n", strings.Join(r.Args[1:], " "))
	case "both":
		out("to stdout\n")
		fmt.Fprint(s.Stderr, "to stderr\n")
	case "exit":
		code := 0
		_, err := fmt.Sscan(r.Args[1], &code)
		return runtime.ExitStatus{Code: code}, err
	case "yes":
		for {
			if _, err := io.WriteString(s.Stdout, "y\n"); err != nil {
				return runtime.ExitStatus{}, fmt.Errorf("write stdout: %w", err)
			}
		}
	case "cat":
		if s.Stdin == nil {
			break
		}
		_, err := io.Copy(s.Stdout, s.Stdin)
		return runtime.ExitStatus{}, err
	case "line": // reads one line from its terminal, in whatever mode that is
		b := make([]byte, 64)
		n, err := s.Stdin.Read(b)
		out("read %q\r\n", b[:n])
		return runtime.ExitStatus{Code: 5}, err
	case "size":
		out("%dx%d\n", r.Rows, r.Cols)
		size := <-s.Resize
		out("%dx%d\n", size.Rows, size.Cols)
	case "signals":
		out("ready\n")
		sig := <-s.Signals
		out("%v\n", sig)
		return runtime.ExitStatus{Code: 128 + int(sig), Signal: int(sig)}, nil
	case "deaf":
		out("ready\n")
		<-ctx.Done()
		return runtime.ExitStatus{}, ctx.Err()
	case "crash":
		out("ready\n")
		panic("a bug in the engine")
	case "nowhere":
		return runtime.ExitStatus{Code: 127, Error: `run "nowhere": not found in PATH`}, nil
	default:
		return runtime.ExitStatus{}, fmt.Errorf("the fake guest has no %q", r.Args[0])
	}
	return runtime.ExitStatus{}, nil
}

// --- files: the guest's root is DATA/fs/NAME, moved by the tar of this host

func (f *fake) inGuest(name, path string) string { return filepath.Join(f.dir, "fs", name, path) }

func (f *fake) StatPath(ctx context.Context, name, path string) (runtime.PathStat, error) {
	if _, err := os.Stat(f.inGuest(name, "")); err != nil {
		return runtime.PathStat{}, f.missing("sandbox", name)
	}
	st, err := os.Lstat(f.inGuest(name, path))
	if err != nil {
		return runtime.PathStat{}, f.missing("path", name+":"+path)
	}
	p := runtime.PathStat{Name: st.Name(), SizeBytes: st.Size(), IsDir: st.IsDir()}
	if st.Mode()&os.ModeSymlink != 0 {
		p.LinkTarget, err = os.Readlink(f.inGuest(name, path))
	}
	return p, err
}

func (f *fake) CopyIn(ctx context.Context, r runtime.CopyInRequest, in io.Reader) error {
	if err := f.call("CopyIn", r); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "tar", "-xpf", "-", "-C", f.inGuest(r.Name, r.Path))
	cmd.Stdin = in
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy to %s: %w: %s", r.Path, err, out)
	}
	return nil
}

func (f *fake) CopyOut(ctx context.Context, r runtime.CopyOutRequest, out io.Writer) error {
	if err := f.call("CopyOut", r); err != nil {
		return err
	}
	real, base := f.inGuest(r.Name, r.Path), filepath.Base(r.Path)
	for range 8 {
		target, err := os.Readlink(real)
		if err != nil || !r.FollowLink {
			break
		}
		if filepath.IsAbs(target) {
			real = f.inGuest(r.Name, target)
		} else {
			real = filepath.Join(filepath.Dir(real), target)
		}
	}
	args := []string{"-cf", "-", "-C", filepath.Dir(real), "--transform", "s,^[^/]*," + base + ",rhS", filepath.Base(real)}
	if r.Path == "/" {
		args = []string{"-cf", "-", "-C", real, "."}
	}
	cmd := exec.CommandContext(ctx, "tar", args...)
	cmd.Stdout = out
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", r.Path, err, stderr.String())
	}
	return nil
}

// --- history

// commitID makes an id that begins with the letter of a commit of the fake.
func commitID(letter string) string { return strings.Repeat(letter, 8) + strings.Repeat("0", 56) }

// fakeCommits is
//
//	e   on try; its parent is b
//	d   on main, box; a merge of c and b
//	c   its parent is a
//	b   tag v1, lab; its parent is a
//	a
var fakeCommits = []runtime.Commit{
	fakeCommit("e", time.Minute, "another way", []string{"b"}, "try"),
	fakeCommit("d", 2*time.Minute, "both ways\n\nwith a body\n", []string{"c", "b"}, "box@ -> main", "main"),
	fakeCommit("c", 3*time.Minute, "one way", []string{"a"}),
	fakeCommit("b", time.Hour, "prepared", []string{"a"}, "lab@", "tag: v1"),
	fakeCommit("a", 2*time.Hour, "", nil),
}

func fakeCommit(letter string, age time.Duration, message string, parents []string, refs ...string) runtime.Commit {
	c := runtime.Commit{
		ID: commitID(letter), Branch: "main", Sandbox: "box", Image: "agent:latest", Message: message, Author: "root@host",
		Created: testNow.Add(-age), Kind: "full", Refs: refs,
		Memory: runtime.CommitMemory{SizeBytes: 512 << 20, ResidentBytes: 107 << 20, ChangedBytes: 9 << 20, StoredBytes: 2 << 20},
		Disk:   runtime.CommitDisk{SizeBytes: 4 << 30, ChangedBytes: 1 << 20, StoredBytes: 1 << 19},
	}
	for _, p := range parents {
		c.Parents = append(c.Parents, commitID(p))
	}
	return c
}

func (f *fake) Commit(ctx context.Context, r runtime.CommitRequest) (runtime.Commit, error) {
	c := fakeCommits[1]
	c.Timing = &runtime.CommitTiming{PauseMS: 4.2, TotalMS: 90}
	if r.Author == runtime.DefaultAuthor() {
		r.Author = "" // the engine would say the same
	}
	return c, f.call("Commit", r)
}

func (f *fake) Fork(ctx context.Context, r runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
	if err := f.call("Fork", r); err != nil && r.N == 1 {
		return nil, err
	}
	var all []runtime.Fork
	for i := range r.N {
		k := runtime.Fork{Name: fmt.Sprintf("%s-%d", r.Prefix, i+1), Commit: commitID("d"), IP: fmt.Sprintf("10.88.0.%d", i+9), ReadyMS: 101.5}
		each(k)
		all = append(all, k)
	}
	if r.From == "half" {
		return all, errors.New("copy 3 did not come up")
	}
	return all, nil
}

func (f *fake) Checkout(ctx context.Context, r runtime.CheckoutRequest) (runtime.Sandbox, error) {
	s := fakeSandboxes[0]
	s.Name = r.Name
	if r.Ref == "v1" {
		s.Head = runtime.Head{Commit: commitID("b")}
	}
	return s, f.call("Checkout", r)
}

func (f *fake) Log(ctx context.Context, r runtime.LogRequest) ([]runtime.Commit, error) {
	if err := f.call("Log", r); err != nil {
		return nil, err
	}
	if r.Ref == "nothing" {
		return nil, nil
	}
	if r.N > 0 {
		return fakeCommits[:r.N], nil
	}
	return fakeCommits, nil
}

func (f *fake) Show(ctx context.Context, ref string) (runtime.Commit, error) {
	if err := f.call("Show", ref); err != nil {
		return runtime.Commit{}, err
	}
	switch ref {
	case "main":
		c := fakeCommits[1]
		c.Labels = map[string]string{"stage": "3", "by": "ci"}
		return c, nil
	case "disk":
		c := fakeCommits[3]
		c.Kind, c.Memory = "disk", runtime.CommitMemory{}
		return c, nil
	}
	return runtime.Commit{}, f.missing("ref", ref)
}

func (f *fake) Reflog(ctx context.Context, name string) ([]runtime.ReflogEntry, error) {
	return []runtime.ReflogEntry{
		{Index: 0, Commit: commitID("d"), Action: "checkout", Message: "moving from try to main", Time: testNow.Add(-time.Minute)},
		{Index: 1, Commit: commitID("c"), Action: "commit", Message: "one way\nand more", Time: testNow.Add(-time.Hour)},
	}, f.call("Reflog", name)
}

func (f *fake) ListRefs(ctx context.Context, kind runtime.RefKind) ([]runtime.Ref, error) {
	if err := f.call("ListRefs", kind); err != nil {
		return nil, err
	}
	if kind == runtime.TagRef {
		return []runtime.Ref{{Name: "v1", Commit: commitID("b")}}, nil
	}
	return []runtime.Ref{{Name: "main", Commit: commitID("d"), Sandbox: "box"}, {Name: "try", Commit: commitID("e")}}, nil
}

func (f *fake) CreateRef(ctx context.Context, kind runtime.RefKind, name, ref string) (runtime.Ref, error) {
	return runtime.Ref{Name: name, Commit: commitID("b")}, f.call("CreateRef", []string{string(kind), name, ref})
}

func (f *fake) DeleteRef(ctx context.Context, kind runtime.RefKind, name string) error {
	return f.call("DeleteRef", []string{string(kind), name})
}

func (f *fake) RenameBranch(ctx context.Context, from, to string) error {
	return f.call("RenameBranch", []string{from, to})
}

// --- storage and the rest

func (f *fake) GC(ctx context.Context, dryRun bool) (runtime.GCReport, error) {
	return runtime.GCReport{DryRun: dryRun, Commits: 1, Chunks: 240, FreedBytes: 3 << 20, WaitingBytes: 1 << 20, CachedBytes: 1 << 30, LeftoverDirs: 1}, f.call("GC", dryRun)
}

func (f *fake) Fsck(ctx context.Context) (runtime.FsckReport, error) {
	r := runtime.FsckReport{Commits: 5, Chunks: 1200}
	if _, err := os.Stat(filepath.Join(f.dir, "damaged")); err == nil {
		r.Problems = []runtime.FsckProblem{{Object: "chunk 12ab", Reason: "hash does not match", Hint: "fetch it again from a remote"}}
	}
	return r, f.call("Fsck", nil)
}

func (f *fake) DiskUsage(ctx context.Context) (runtime.UsageReport, error) {
	return runtime.UsageReport{ImagesBytes: 420 << 20, StoreBytes: 1 << 30}, f.call("DiskUsage", nil)
}

func (f *fake) Doctor(ctx context.Context) (runtime.DoctorReport, error) {
	r := runtime.DoctorReport{OK: true, Checks: []runtime.DoctorCheck{
		{Name: "root", Status: "ok", Detail: "effective uid 0"},
		{Name: "kvm", Status: "note", Detail: "no virtualization in this CPU: TCG is used", Fix: "run on a host with KVM"},
	}}
	if _, err := os.Stat(filepath.Join(f.dir, "bare")); err == nil {
		r.OK = false
		r.Checks = append(r.Checks, runtime.DoctorCheck{Name: "qemu-system-x86_64", Status: "missing", Detail: "not on PATH", Fix: "apt-get install qemu-system-x86"})
	}
	return r, f.call("Doctor", nil)
}

func (f *fake) Close() error { return f.call("Close", nil) }
