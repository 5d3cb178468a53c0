package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api"
)

// guest is an engine whose verbs are those of the test; the others panic. That
// every verb is carried over as it is asked for, is what cmd/sietch's scripts see.
type guest struct {
	runtime.Engine
	exec    func(context.Context, runtime.ExecRequest, runtime.ExecIO) (runtime.ExitStatus, error)
	commit  func(context.Context, runtime.CommitRequest) (runtime.Commit, error)
	fork    func(context.Context, runtime.ForkRequest, func(runtime.Fork)) ([]runtime.Fork, error)
	copyIn  func(context.Context, io.Reader) error
	copyOut func(io.Writer) error
	events  func(context.Context, runtime.EventsRequest, func(runtime.Event) error) error
	logs    func(context.Context, io.Writer) error
	start   func() (runtime.Process, error)
	output  func(runtime.ProcessOutputRequest, io.Writer) (int64, error)
	dial    func() (io.ReadWriteCloser, error)
}

func (g *guest) Exec(ctx context.Context, r runtime.ExecRequest, s runtime.ExecIO) (runtime.ExitStatus, error) {
	return g.exec(ctx, r, s)
}
func (g *guest) Commit(ctx context.Context, r runtime.CommitRequest) (runtime.Commit, error) {
	return g.commit(ctx, r)
}
func (g *guest) Fork(ctx context.Context, r runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
	return g.fork(ctx, r, each)
}
func (g *guest) CopyIn(ctx context.Context, _ runtime.CopyInRequest, in io.Reader) error {
	return g.copyIn(ctx, in)
}
func (g *guest) CopyOut(_ context.Context, _ runtime.CopyOutRequest, out io.Writer) error {
	return g.copyOut(out)
}
func (g *guest) Events(ctx context.Context, r runtime.EventsRequest, each func(runtime.Event) error) error {
	return g.events(ctx, r, each)
}
func (g *guest) Logs(ctx context.Context, _ runtime.LogsRequest, w io.Writer) error {
	return g.logs(ctx, w)
}
func (g *guest) StartProcess(context.Context, runtime.ExecRequest) (runtime.Process, error) {
	return g.start()
}
func (g *guest) ProcessOutput(_ context.Context, r runtime.ProcessOutputRequest, w io.Writer) (int64, error) {
	return g.output(r, w)
}
func (g *guest) DialPort(context.Context, string, uint16) (io.ReadWriteCloser, error) {
	return g.dial()
}

// serve serves an engine on a data directory until stop is called; the context
// that is given to it is its end.
func serve(t *testing.T, g runtime.Engine) (dir string, stop func()) {
	t.Helper()
	// Longer than the path of a unix socket may be.
	dir = filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	ctx, cancel := context.WithCancel(context.Background())
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- api.Serve(ctx, api.Options{Engine: g, Version: "v1"}, api.Listen{DataDir: dir, Listening: func([]string, string) { close(began) }})
	}()
	select {
	case <-began:
	case err := <-ended:
		t.Fatal(err)
	}
	once := false
	stop = func() {
		if !once {
			once = true
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return dir, stop
}

func open(t *testing.T, dir string) *Engine {
	t.Helper()
	e, err := Open(t.Context(), Options{DataDir: dir, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func lab(t *testing.T, g *guest) *Engine {
	t.Helper()
	dir, _ := serve(t, g)
	return open(t, dir)
}

func TestOpen(t *testing.T) {
	dir, stop := serve(t, &guest{})
	open(t, dir)
	if _, err := Open(t.Context(), Options{DataDir: dir, Version: "v2"}); !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), "it is sietch v1, this is v2") {
		t.Errorf("another version: got %v", err)
	}
	stop()
	if _, err := Open(t.Context(), Options{DataDir: dir, Version: "v1"}); !errors.Is(err, ErrNone) {
		t.Errorf("after its end: got %v", err)
	}

	// What a killed server leaves.
	stale := t.TempDir()
	n, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(stale, socketName)})
	if err != nil {
		t.Fatal(err)
	}
	n.SetUnlinkOnClose(false)
	n.Close()
	for name, dir := range map[string]string{"a stale socket": stale, "no socket": t.TempDir(), "no directory": filepath.Join(stale, "none")} {
		if _, err := Open(t.Context(), Options{DataDir: dir, Version: "v1"}); err != ErrNone {
			t.Errorf("%s: got %v, want ErrNone", name, err)
		}
	}
	// Something else that listens there.
	odd := t.TempDir()
	n, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(odd, socketName)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	go func() {
		for {
			c, err := n.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "220 mail\r\n")
			c.Close()
		}
	}()
	if _, err := Open(t.Context(), Options{DataDir: odd, Version: "v1"}); !errors.Is(err, ErrNone) {
		t.Errorf("something else: got %v, want ErrNone", err)
	}
}

// BenchmarkOpenNone is what a shell without a server pays.
func BenchmarkOpenNone(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, err := Open(b.Context(), Options{DataDir: dir}); err != ErrNone {
			b.Fatal(err)
		}
	}
}

// TestErrors wants of every kind what the local engine returned, as callers can
// tell.
func TestErrors(t *testing.T) {
	plain := errors.New("just so")
	tests := []struct {
		name string
		err  error
		is   []error
	}{
		{"plain", plain, nil},
		{"usage", &runtime.Error{Kind: runtime.ErrUsage, Message: "no", Hint: "do"}, []error{runtime.ErrUsage}},
		{"not found", &runtime.Error{Kind: runtime.ErrNotFound, Message: "gone"}, []error{runtime.ErrNotFound}},
		{"busy", &runtime.Error{Kind: runtime.ErrBusy, Message: "held", Err: plain, Hint: "wait\nand see"}, []error{runtime.ErrBusy}},
		{"corrupt", &runtime.Error{Kind: runtime.ErrCorrupt, Message: "bad"}, []error{runtime.ErrCorrupt}},
		{"host", &runtime.Error{Kind: runtime.ErrHost, Message: "no KVM"}, []error{runtime.ErrHost}},
		{"state", &runtime.Error{Kind: runtime.ErrState, Message: "stopped"}, []error{runtime.ErrState}},
		{"not active", &runtime.Error{Kind: runtime.ErrNotActive, Message: "not running"}, []error{runtime.ErrNotActive}},
		{"canceled", context.Canceled, []error{context.Canceled}},
		{"deadline", context.DeadlineExceeded, []error{context.DeadlineExceeded}},
	}
	all := []error{runtime.ErrUsage, runtime.ErrNotFound, runtime.ErrBusy, runtime.ErrCorrupt, runtime.ErrHost, runtime.ErrState, runtime.ErrNotActive, context.Canceled, context.DeadlineExceeded}
	var now error
	g := &guest{
		commit: func(context.Context, runtime.CommitRequest) (runtime.Commit, error) { return runtime.Commit{}, now },
		exec: func(context.Context, runtime.ExecRequest, runtime.ExecIO) (runtime.ExitStatus, error) {
			return runtime.ExitStatus{}, now
		},
		copyOut: func(w io.Writer) error { io.WriteString(w, "part"); return now },
		fork: func(_ context.Context, _ runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
			each(runtime.Fork{Name: "f-1"})
			return nil, now
		},
		events: func(_ context.Context, _ runtime.EventsRequest, each func(runtime.Event) error) error { return now },
	}
	e := lab(t, g)
	ctx := t.Context()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now = tt.err
			var part bytes.Buffer
			calls := map[string]error{}
			_, calls["an answer"] = e.Commit(ctx, runtime.CommitRequest{Name: "box"})
			_, calls["a WebSocket"] = e.Exec(ctx, runtime.ExecRequest{Name: "box", Args: []string{"x"}}, runtime.ExecIO{})
			calls["a trailer"] = e.CopyOut(ctx, runtime.CopyOutRequest{Name: "box", Path: "/x"}, &part)
			_, calls["a line"] = e.Fork(ctx, runtime.ForkRequest{From: "box", N: 1}, nil)
			calls["an event"] = e.Events(ctx, runtime.EventsRequest{}, nil)
			for how, err := range calls {
				if err == nil {
					t.Errorf("%s: no error", how)
					continue
				}
				if err.Error() != tt.err.Error() || runtime.Hint(err) != runtime.Hint(tt.err) {
					t.Errorf("%s: got %q, hint %q", how, err, runtime.Hint(err))
				}
				for _, kind := range all {
					if got, want := errors.Is(err, kind), errors.Is(tt.err, kind); got != want {
						t.Errorf("%s: is %v: got %t", how, kind, got)
					}
				}
			}
			if part.String() != "part" {
				t.Errorf("got %q before the error", part.String())
			}
		})
	}
}

func TestStartError(t *testing.T) {
	want := &runtime.StartError{Sandbox: "box", Status: runtime.ExitStatus{Code: 127, Error: "nowhere: not found"}}
	e := lab(t, &guest{start: func() (runtime.Process, error) { return runtime.Process{}, want }})
	_, err := e.StartProcess(t.Context(), runtime.ExecRequest{Name: "box", Args: []string{"nowhere"}})
	got, ok := errors.AsType[*runtime.StartError](err)
	if !ok || !cmp.Equal(got, want) || !errors.Is(err, runtime.ErrState) {
		t.Errorf("got %#v", err)
	}
	st, err := e.Exec(t.Context(), runtime.ExecRequest{Name: "box", Args: []string{"nowhere"}, Detach: true}, runtime.ExecIO{})
	if err != nil || st != want.Status {
		t.Errorf("detached: got %v, %v", st, err)
	}
}

// TestCancelWaitsForTheUndo wants the end of a context to end the verb, and the
// method to return after what the verb undid.
func TestCancelWaitsForTheUndo(t *testing.T) {
	began := make(chan struct{}, 1)
	var undone bool
	work := func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		time.Sleep(100 * time.Millisecond)
		undone = true
		return &runtime.Error{Message: "commit box", Err: context.Cause(ctx)}
	}
	e := lab(t, &guest{
		commit: func(ctx context.Context, _ runtime.CommitRequest) (runtime.Commit, error) {
			return runtime.Commit{}, work(ctx)
		},
		fork: func(ctx context.Context, _ runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
			each(runtime.Fork{Name: "f-1"})
			return nil, work(ctx)
		},
		copyIn: func(ctx context.Context, in io.Reader) error {
			read := make(chan struct{})
			go func() { defer close(read); io.Copy(io.Discard, in) }()
			err := work(ctx)
			<-read
			return err
		},
	})
	stuck, _ := io.Pipe()
	for name, do := range map[string]func(context.Context) error{
		"commit": func(ctx context.Context) error {
			_, err := e.Commit(ctx, runtime.CommitRequest{Name: "box"})
			return err
		},
		"fork": func(ctx context.Context) error {
			_, err := e.Fork(ctx, runtime.ForkRequest{From: "box", N: 2}, nil)
			return err
		},
		"upload from a reader that is stuck": func(ctx context.Context) error {
			return e.CopyIn(ctx, runtime.CopyInRequest{Name: "box", Path: "/"}, stuck)
		},
	} {
		t.Run(name, func(t *testing.T) {
			undone = false
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-began; cancel() }()
			err := do(ctx)
			if !undone || err == nil || err.Error() != "commit box: context canceled" || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, undone %t", err, undone)
			}
		})
	}
}

// TestFollowersEnd wants streams without an end to end as those of the local
// engine: without an error where it is the caller's wish.
func TestFollowersEnd(t *testing.T) {
	g := &guest{
		events: func(ctx context.Context, r runtime.EventsRequest, each func(runtime.Event) error) error {
			if err := each(runtime.Event{ID: 4, Type: "gc"}); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		},
		logs: func(ctx context.Context, w io.Writer) error {
			io.WriteString(w, "line\n")
			<-ctx.Done()
			return nil
		},
	}
	dir, stop := serve(t, g)
	e := open(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	err := e.Events(ctx, runtime.EventsRequest{After: -1, Follow: true}, func(ev runtime.Event) error {
		if ev.ID != 4 {
			t.Errorf("got %v", ev)
		}
		cancel()
		return nil
	})
	if err != nil {
		t.Errorf("events: got %v after the end of the context", err)
	}
	enough := errors.New("enough")
	if err := e.Events(t.Context(), runtime.EventsRequest{Follow: true}, func(runtime.Event) error { return enough }); err != enough {
		t.Errorf("events: got %v, want the caller's own", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	if err := e.Logs(ctx, runtime.LogsRequest{Name: "box", Follow: true}, writer(func([]byte) error { cancel(); return nil })); err != nil {
		t.Errorf("logs: got %v after the end of the context", err)
	}
	if err := e.Logs(t.Context(), runtime.LogsRequest{Name: "box", Follow: true}, writer(func([]byte) error { return enough })); err != enough {
		t.Errorf("logs: got %v, want the writer's own", err)
	}
	// The end of the server is none of what is followed.
	err = e.Logs(t.Context(), runtime.LogsRequest{Name: "box", Follow: true}, writer(func([]byte) error { go stop(); return nil }))
	if err == nil || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("logs: got %v when the server ended", err)
	}
}

type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }

// TestExec wants all that passes both ways.
func TestExec(t *testing.T) {
	var asked runtime.ExecRequest
	e := lab(t, &guest{exec: func(_ context.Context, r runtime.ExecRequest, s runtime.ExecIO) (runtime.ExitStatus, error) {
		asked = r
		s.Started()
		size, sig := <-s.Resize, <-s.Signals
		in, err := io.ReadAll(s.Stdin)
		s.Stdout.Write(in)
		io.WriteString(s.Stderr, "err")
		return runtime.ExitStatus{Code: int(size.Rows), Signal: int(sig), Error: "why"}, err
	}})
	want := runtime.ExecRequest{Name: "box", Args: []string{"a", ""}, Env: []string{"K=V"}, WorkingDir: "/w", User: "1:2", Stdin: true, TTY: true, Rows: 2, Cols: 3, Timeout: time.Minute}
	resize, signals := make(chan runtime.TTYSize, 1), make(chan syscall.Signal, 1)
	resize <- runtime.TTYSize{Rows: 24, Cols: 80}
	signals <- syscall.SIGUSR1
	in := strings.Repeat("0123456789", 100_000)
	var out, errs bytes.Buffer
	started := 0
	st, err := e.Exec(t.Context(), want, runtime.ExecIO{Started: func() { started++ }, Stdin: strings.NewReader(in), Stdout: &out, Stderr: &errs, Resize: resize, Signals: signals})
	if err != nil || st != (runtime.ExitStatus{Code: 24, Signal: 10, Error: "why"}) {
		t.Errorf("got %v, %v", st, err)
	}
	if out.String() != in || errs.String() != "err" || started != 1 {
		t.Errorf("got %d bytes, %q, started %d times", out.Len(), errs.String(), started)
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

// TestSignalOvertakesInput wants a signal to arrive at a command that does not
// read what is sent to it.
func TestSignalOvertakesInput(t *testing.T) {
	e := lab(t, &guest{exec: func(_ context.Context, _ runtime.ExecRequest, s runtime.ExecIO) (runtime.ExitStatus, error) {
		s.Started()
		return runtime.ExitStatus{Signal: int(<-s.Signals)}, nil
	}})
	signals := make(chan syscall.Signal)
	stdio := runtime.ExecIO{Stdin: endless{}, Signals: signals, Started: func() {
		go func() {
			time.Sleep(300 * time.Millisecond) // input piles up
			signals <- syscall.SIGTERM
		}()
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	st, err := e.Exec(ctx, runtime.ExecRequest{Name: "box", Args: []string{"sleep"}, Stdin: true}, stdio)
	if err != nil || st.Signal != 15 {
		t.Errorf("got %v, %v", st, err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestExecEndsWithItsContext wants the command to be ended, and the cause back.
func TestExecEndsWithItsContext(t *testing.T) {
	ended := make(chan struct{})
	e := lab(t, &guest{exec: func(ctx context.Context, _ runtime.ExecRequest, s runtime.ExecIO) (runtime.ExitStatus, error) {
		defer close(ended)
		s.Started()
		<-ctx.Done()
		return runtime.ExitStatus{}, ctx.Err()
	}})
	why := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := e.Exec(ctx, runtime.ExecRequest{Name: "box", Args: []string{"sleep"}}, runtime.ExecIO{Started: func() { cancel(why) }})
	if err != why {
		t.Errorf("got %v, want the cause", err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the command goes on")
	}
	// So does a writer that fails, with its own error.
	e = lab(t, &guest{exec: func(ctx context.Context, _ runtime.ExecRequest, s runtime.ExecIO) (runtime.ExitStatus, error) {
		for {
			if _, err := io.WriteString(s.Stdout, "y\n"); err != nil {
				return runtime.ExitStatus{}, err
			}
		}
	}})
	_, err = e.Exec(t.Context(), runtime.ExecRequest{Name: "box", Args: []string{"yes"}}, runtime.ExecIO{Stdout: writer(func([]byte) error { return syscall.EPIPE })})
	if !errors.Is(err, syscall.EPIPE) || errors.Is(err, ErrGone) {
		t.Errorf("got %v, want the writer's error", err)
	}
}

// TestUploadReader wants the error of the caller's reader, and not that of the
// connection which it broke.
func TestUploadReader(t *testing.T) {
	e := lab(t, &guest{copyIn: func(_ context.Context, in io.Reader) error {
		_, err := io.Copy(io.Discard, in)
		return err
	}})
	bad := errors.New("disk on fire")
	err := e.CopyIn(t.Context(), runtime.CopyInRequest{Name: "box", Path: "/"}, io.MultiReader(strings.NewReader("part"), failing{bad}))
	if !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestRefusedUpload wants the server's reason although most of the body was never
// read.
func TestRefusedUpload(t *testing.T) {
	e := lab(t, &guest{copyIn: func(context.Context, io.Reader) error {
		return &runtime.Error{Kind: runtime.ErrNotFound, Message: "no such directory"}
	}})
	for range 5 {
		err := e.CopyIn(t.Context(), runtime.CopyInRequest{Name: "box", Path: "/x"}, io.LimitReader(endless{}, 64<<20))
		if !errors.Is(err, runtime.ErrNotFound) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestProcessOutput(t *testing.T) {
	kept := bytes.Repeat([]byte("x"), 2<<20)
	const from = 1000
	e := lab(t, &guest{output: func(r runtime.ProcessOutputRequest, w io.Writer) (int64, error) {
		at := max(r.Offset, from)
		if r.Offset < from && r.Skipped != nil {
			r.Skipped(from - r.Offset)
		}
		all := kept[min(int(at-from), len(kept)):]
		if r.Limit > 0 {
			all = all[:min(int(r.Limit), len(all))]
		}
		n, err := w.Write(all)
		return at + int64(n), err
	}})
	for _, tt := range []struct {
		offset, limit  int64
		follow         bool
		bytes, skipped int64
	}{
		{0, 0, false, 2 << 20, from},
		{from, 0, false, 2 << 20, 0},
		{10, 5, false, 5, from - 10},
		{10, 5, true, 5, from - 10},
		{2000, 0, true, 2<<20 - 1000, 0},
		{from, 1<<20 + 7, false, 1<<20 + 7, 0},
	} {
		var out bytes.Buffer
		var skipped int64
		next, err := e.ProcessOutput(t.Context(), runtime.ProcessOutputRequest{
			Name: "box", ID: "p", Offset: tt.offset, Limit: tt.limit, Follow: tt.follow, Skipped: func(n int64) { skipped += n },
		}, &out)
		if err != nil || int64(out.Len()) != tt.bytes || skipped != tt.skipped || next != tt.offset+tt.skipped+tt.bytes {
			t.Errorf("%+v: got %d bytes, %d skipped, next %d, %v", tt, out.Len(), skipped, next, err)
		}
	}
}

func TestDialPort(t *testing.T) {
	e := lab(t, &guest{dial: func() (io.ReadWriteCloser, error) {
		here, there := tcpPair(t)
		go func() { // says back what it was told, once that has ended
			all, _ := io.ReadAll(there)
			there.Write(bytes.ToUpper(all))
			there.Close()
		}()
		return here, nil
	}})
	c, err := e.DialPort(t.Context(), "box", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text := strings.Repeat("hello", 50_000)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || string(got) != strings.ToUpper(text) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

func tcpPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	n, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if a, err = net.Dial("tcp", n.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = n.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// TestServerDies wants an error that says so, of a call under way and of one that
// comes after.
func TestServerDies(t *testing.T) {
	dir := t.TempDir()
	n, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, socketName)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	go func() { // answers the version, and dies at the next call
		for {
			c, err := n.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			c.Read(buf)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 29\r\n\r\n{\"version\":\"v1\",\"api\":\"1.0\"} ")
			c.Read(buf)
			c.Close()
		}
	}()
	e := open(t, dir)
	_, err = e.Commit(t.Context(), runtime.CommitRequest{Name: "box"})
	if !errors.Is(err, ErrGone) || runtime.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(filepath.Join(dir, socketName)); err != nil {
		t.Fatal(err)
	}
	if _, err = e.List(t.Context(), true); !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("got %v", err)
	}
}
