package sietch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api"
	"github.com/sietch-dev/sietch/sdk/go/sietch"
)

// must is for what has to succeed in a test that is not about it.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}

func TestRunAndCommands(t *testing.T) {
	m := newMachines()
	c, ctx := connect(t, m), t.Context()
	box := must(c.Run(ctx, sietch.RunRequest{From: "debian", Name: "box", MemoryBytes: 1 << 29, Env: []string{"A=b"}, Ports: []sietch.PortRequest{{Guest: 80}}}))(t)
	if box.Name != "box" || box.ReadyMs != 12 {
		t.Errorf("got %+v", box)
	}
	if q := m.last.(runtime.RunRequest); q.MemoryBytes != 1<<29 || q.Ports[0].Guest != 80 || q.Env[0] != "A=b" {
		t.Errorf("the engine was asked %+v", q)
	}
	res := must(box.Exec(ctx, "echo", "a", "b"))(t)
	if res.Stdout != "a b\n" || res.ExitCode != 0 {
		t.Errorf("got %+v", res)
	}
	if res := must(box.Exec(ctx, "nothing"))(t); res.ExitCode != 127 || res.Error == "" {
		t.Errorf("got %+v", res)
	}
	if res := must(box.ExecWith(ctx, sietch.ExecRequest{Args: []string{"cat"}, Stdin: "in"}))(t); res.Stdout != "in" {
		t.Errorf("got %+v", res)
	}
	list := must(c.List(ctx, true))(t)
	if len(list) != 1 || list[0].Name != "box" {
		t.Errorf("got %+v", list)
	}
	for _, verb := range []error{box.Pause(ctx), box.Resume(ctx), box.Stop(ctx, 3*time.Second), box.Remove(ctx, true)} {
		if verb != nil {
			t.Error(verb)
		}
	}
	if q := m.last.(runtime.StopRequest); q.Timeout != 3*time.Second {
		t.Errorf("stop was asked %+v", q)
	}
	if must(c.Version(ctx))(t).Api == "" {
		t.Error("the server does not say its version")
	}
}

func TestErrors(t *testing.T) {
	c, ctx := connect(t, newMachines()), t.Context()
	_, err := c.Sandbox("none").Exec(ctx, "true")
	var e *sietch.Error
	if !errors.As(err, &e) || !errors.Is(err, sietch.NotFound) || errors.Is(err, sietch.Busy) {
		t.Fatalf("got %v", err)
	}
	want := &sietch.Error{Code: sietch.NotFound, Message: "no sandbox none", Hint: "sietch ps -a lists them", Status: 404, RequestID: e.RequestID}
	if diff := cmp.Diff(want, e); diff != "" || e.RequestID == "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := err.Error(); got != "no sandbox none (hint: sietch ps -a lists them)" {
		t.Errorf("got %q", got)
	}
	// The handshake of a WebSocket says the same.
	if _, err := c.Sandbox("none").ExecStream(ctx, sietch.ExecStart{Args: []string{"true"}}); !errors.Is(err, sietch.NotFound) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Sandbox("NO").Inspect(ctx); !errors.Is(err, sietch.Usage) {
		t.Errorf("got %v", err)
	}
}

// TestCodes holds the codes against the API's document.
func TestCodes(t *testing.T) {
	list := regexp.MustCompile(`(?s)ErrorCode:.*?enum: \[(.*?)\]`).FindSubmatch(api.Document)
	if list == nil {
		t.Fatal("the document has no ErrorCode")
	}
	source := must(os.ReadFile("../../../runtime/api/wire/errors.go"))(t)
	var ours []string
	for _, m := range regexp.MustCompile(`Code = "(\w+)"`).FindAllSubmatch(source, -1) {
		ours = append(ours, string(m[1]))
	}
	if diff := cmp.Diff(strings.Split(string(list[1]), ", "), ours); diff != "" {
		t.Errorf("codes (-document +package):\n%s", diff)
	}
}

func TestAnotherServer(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"page":  func(w http.ResponseWriter, r *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) },
		"empty": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) },
		"other": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404); io.WriteString(w, `{"detail":"no"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(h)
			defer s.Close()
			c := must(sietch.New(sietch.Options{URL: s.URL}))(t)
			if _, err := c.Version(t.Context()); !errors.Is(err, sietch.ErrProtocol) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	m := newMachines()
	url, socket := served(t, m, api.Options{})
	dir := t.TempDir()
	for _, tt := range []struct{ name, given, env, dataDir string }{
		{"given", url, "http://127.0.0.1:1", ""},
		{"socket", socket, "", ""},
		{"environment", "", socket, ""},
		{"data directory", "", "", filepath.Dir(strings.TrimPrefix(socket, "unix://"))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.dataDir != "" {
				if err := os.Symlink(strings.TrimPrefix(socket, "unix://"), filepath.Join(dir, "serve.sock")); err != nil {
					t.Fatal(err)
				}
				t.Setenv("SIETCH_DATA_DIR", dir)
			}
			t.Setenv("SIETCH_URL", tt.env)
			c := must(sietch.New(sietch.Options{URL: tt.given}))(t)
			defer c.Close()
			box := must(c.Run(t.Context(), sietch.RunRequest{From: "x"}))(t)
			x := must(box.ExecStream(t.Context(), sietch.ExecStart{Args: []string{"echo", "hi"}}))(t)
			var out bytes.Buffer
			if _, err := x.Copy(&out, nil); err != nil || out.String() != "hi\n" {
				t.Errorf("got %q, %v", out.String(), err)
			}
		})
	}
	for _, wrong := range []string{"127.0.0.1:7000", "ftp://x", "http://", "unix://host/x", "http://u:p@h", "http://h?x", "\x00"} {
		if _, err := sietch.New(sietch.Options{URL: wrong}); !errors.Is(err, sietch.Usage) {
			t.Errorf("%q: got %v", wrong, err)
		}
	}
}

func TestTokens(t *testing.T) {
	tokens := must(api.OpenTokens(filepath.Join(t.TempDir(), "tokens.json")))(t)
	secret, _, err := tokens.Create(api.Token{Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	url, _ := served(t, newMachines(), api.Options{Tokens: tokens})
	if _, err := must(sietch.New(sietch.Options{URL: url}))(t).Version(t.Context()); !errors.Is(err, sietch.Unauthorized) {
		t.Errorf("without a token: %v", err)
	}
	t.Setenv("SIETCH_TOKEN", secret)
	c := must(sietch.New(sietch.Options{URL: url}))(t)
	box := must(c.Run(t.Context(), sietch.RunRequest{From: "x"}))(t)
	x := must(box.ExecStream(t.Context(), sietch.ExecStart{Args: []string{"echo"}}))(t)
	if _, err := x.Copy(nil, nil); err != nil {
		t.Error(err)
	}
}

func TestIdempotencyKey(t *testing.T) {
	m := newMachines()
	c := connect(t, m)
	ctx := sietch.WithIdempotencyKey(t.Context(), "k1")
	first := must(c.Run(ctx, sietch.RunRequest{From: "x"}))(t)
	again := must(c.Run(ctx, sietch.RunRequest{From: "x"}))(t)
	if first.Name != again.Name || len(m.boxes) != 1 {
		t.Errorf("got %s and %s of %d", first.Name, again.Name, len(m.boxes))
	}
	if _, err := c.Run(ctx, sietch.RunRequest{From: "y"}); !errors.Is(err, sietch.KeyReused) {
		t.Errorf("got %v", err)
	}
	must(c.Run(t.Context(), sietch.RunRequest{From: "x"}))(t)
	if len(m.boxes) != 2 {
		t.Error("a call without a key was not made")
	}
}

func TestExecStream(t *testing.T) {
	m := newMachines()
	c, ctx := connect(t, m), t.Context()
	box := must(c.Run(ctx, sietch.RunRequest{From: "x"}))(t)
	start := func(q sietch.ExecStart) *sietch.ExecStream {
		t.Helper()
		x := must(box.ExecStream(ctx, q))(t)
		t.Cleanup(func() { x.Close() })
		return x
	}
	t.Run("streams", func(t *testing.T) {
		var out, err bytes.Buffer
		exit, e := start(sietch.ExecStart{Args: []string{"both"}}).Copy(&out, &err)
		if e != nil || exit.Code != 0 || out.String() != "out" || err.String() != "err" {
			t.Errorf("got %q and %q, %+v, %v", out.String(), err.String(), exit, e)
		}
	})
	t.Run("not found", func(t *testing.T) {
		exit, err := start(sietch.ExecStart{Args: []string{"nothing"}}).Copy(nil, nil)
		if err != nil || exit.Code != 127 || exit.Reason == "" {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
	t.Run("stdin", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789"), 200_000) // more than any buffer on the way
		x := start(sietch.ExecStart{Args: []string{"cat"}, Stdin: true})
		wrote := make(chan error, 1)
		go func() {
			_, err := x.Write(data)
			wrote <- errors.Join(err, x.CloseStdin())
		}()
		var out bytes.Buffer
		if _, err := x.Copy(&out, nil); err != nil {
			t.Fatal(err)
		}
		if err := <-wrote; err != nil || !bytes.Equal(out.Bytes(), data) {
			t.Errorf("%d of %d bytes came back; %v", out.Len(), len(data), err)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		x := start(sietch.ExecStart{Args: []string{"size"}, Tty: true, Rows: 24, Cols: 80})
		if err := errors.Join(x.Resize(50, 132), x.Signal("TERM")); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if _, err := x.Copy(&out, nil); err != nil || out.String() != "50x132 15 of 24x80" {
			t.Errorf("got %q, %v", out.String(), err)
		}
	})
	t.Run("error on the way", func(t *testing.T) {
		var out bytes.Buffer
		_, err := start(sietch.ExecStart{Args: []string{"break"}}).Copy(&out, nil)
		if !errors.Is(err, sietch.NotRunning) || out.String() != "half" {
			t.Errorf("got %q, %v", out.String(), err)
		}
	})
	t.Run("close ends the command", func(t *testing.T) {
		x := start(sietch.ExecStart{Args: []string{"forever"}})
		if _, data, _, err := x.Next(); err != nil || string(data) != "on" {
			t.Fatalf("got %q, %v", data, err)
		}
		x.Close()
		x.Close()
		select {
		case <-m.gone:
		case <-time.After(10 * time.Second):
			t.Error("the command goes on")
		}
	})
	t.Run("context ends the command", func(t *testing.T) {
		m.gone = make(chan struct{})
		ctx, cancel := context.WithCancel(ctx)
		x := must(box.ExecStream(ctx, sietch.ExecStart{Args: []string{"forever"}}))(t)
		time.AfterFunc(50*time.Millisecond, cancel)
		if _, err := x.Copy(nil, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		<-m.gone
	})
}

func TestFork(t *testing.T) {
	m := newMachines()
	c, ctx := connect(t, m), t.Context()
	box := must(c.Run(ctx, sietch.RunRequest{From: "x", Name: "box"}))(t)
	copies := must(box.Fork(ctx, sietch.ForkRequest{N: 3, Branch: true, Labels: map[string]string{"k": "v"}}))(t)
	if len(copies) != 3 || copies[2].Name != "box-3" || copies[2].ReadyMs != 3 {
		t.Errorf("got %+v", copies)
	}
	if q := m.last.(runtime.ForkRequest); !q.Branch || q.Labels["k"] != "v" {
		t.Errorf("the engine was asked %+v", q)
	}
	copies, err := c.Fork(ctx, sietch.ForkRequest{From: "box", N: 3, Prefix: "unlucky"})
	if !errors.Is(err, sietch.Host) || len(copies) != 1 {
		t.Errorf("got %d and %v", len(copies), err)
	}
	for copy, err := range box.ForkEach(ctx, sietch.ForkRequest{N: 2}) {
		if err != nil || copy.Name != "box-1" {
			t.Errorf("got %+v, %v", copy, err)
		}
		break
	}
	for _, err := range c.Sandbox("none").ForkEach(ctx, sietch.ForkRequest{N: 2}) {
		if !errors.Is(err, sietch.NotFound) {
			t.Errorf("got %v", err)
		}
	}
}

func TestHistory(t *testing.T) {
	m := newMachines()
	c, ctx := connect(t, m), t.Context()
	box := must(c.Run(ctx, sietch.RunRequest{From: "x", Name: "box"}))(t)
	one := must(box.Commit(ctx, "one"))(t)
	if err := box.WriteFile(ctx, "/etc/motd", strings.NewReader("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if info := must(box.CheckoutWith(ctx, sietch.CheckoutRequest{Ref: one.Id, NewBranch: "again"}))(t); info.Head.Branch != "again" {
		t.Errorf("got %+v", info.Head)
	}
	if data := must(box.ReadFile(ctx, "/etc/motd"))(t); string(data) != "hello\n" {
		t.Errorf("after checkout the file is %q", data)
	}
	if log := must(box.Log(ctx, 2))(t); len(log) != 1 || log[0].Message != "one" || m.last != (runtime.LogRequest{Ref: "box", N: 2}) {
		t.Errorf("got %+v of %+v", log, m.last)
	}
	must(c.Log(ctx, "", 0))(t)
	if m.last != (runtime.LogRequest{}) {
		t.Errorf("the engine was asked %+v", m.last)
	}
	if got := must(c.Show(ctx, one.Id))(t); got.Message != "one" {
		t.Errorf("got %+v", got)
	}
	if got := must(box.Tag(ctx, "v1"))(t); got.Commit != "tag of box" {
		t.Errorf("got %+v", got)
	}
	if got := must(box.Branch(ctx, "b"))(t); got.Commit != "branch of box" {
		t.Errorf("got %+v", got)
	}
	if b, g := must(c.Branches(ctx))(t), must(c.Tags(ctx))(t); b[0].Name != "a branch" || g[0].Name != "a tag" {
		t.Errorf("got %v and %v", b, g)
	}
	if err := c.DeleteBranch(ctx, "b"); err != nil || m.last != "delete branch b" {
		t.Errorf("got %v, %v", err, m.last)
	}
	if err := c.DeleteTag(ctx, "v1"); err != nil || m.last != "delete tag v1" {
		t.Errorf("got %v, %v", err, m.last)
	}
	if got := must(box.Reflog(ctx))(t); got[0].Action != "checkout" {
		t.Errorf("got %+v", got)
	}
}

func TestFiles(t *testing.T) {
	m := newMachines()
	c, ctx := connect(t, m), t.Context()
	box := must(c.Run(ctx, sietch.RunRequest{From: "x", Name: "box"}))(t)
	if err := box.WriteFile(ctx, "/srv/run", io.MultiReader(strings.NewReader("a"), strings.NewReader("b")), 0o755); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(m.last) != "-rwxr-xr-x" {
		t.Errorf("written with mode %v", m.last)
	}
	r := must(box.OpenFile(ctx, "/srv/run"))(t)
	if data := must(io.ReadAll(r))(t); string(data) != "ab" {
		t.Errorf("got %q", data)
	}
	r.Close()
	if st := must(box.StatPath(ctx, "/srv/run"))(t); st.SizeBytes != 2 {
		t.Errorf("got %+v", st)
	}
	if list := must(box.ListDir(ctx, "/srv"))(t); len(list) != 1 || list[0].Name != "run" {
		t.Errorf("got %+v", list)
	}
	if err := box.MakeDir(ctx, "/srv/a/b", 0o700, true); err != nil || m.last != "mkdir /srv/a/b 700 true" {
		t.Errorf("got %v, %v", err, m.last)
	}
	archive := must(box.ReadTar(ctx, "/srv/run"))(t)
	if err := box.WriteTar(ctx, "/copy", archive); err != nil || m.boxes["box"]["/copy/run"] != "ab" {
		t.Errorf("got %v, %v", err, m.boxes)
	}
	archive.Close()
	if err := box.RemovePath(ctx, "/srv/run", true); err != nil || m.last != true {
		t.Errorf("got %v, %v", err, m.last)
	}
	if _, err := box.ReadFile(ctx, "/srv/run"); !errors.Is(err, sietch.NotFound) {
		t.Errorf("got %v", err)
	}
	var ops []string
	for e, err := range must(box.Watch(ctx, "/srv", true))(t) {
		if err != nil {
			ops = append(ops, err.Error())
			continue
		}
		ops = append(ops, string(e.Op)+" "+e.Path)
	}
	if diff := cmp.Diff([]string{"create /srv/new", "write /srv/new", "box has stopped"}, ops); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProcesses(t *testing.T) {
	m := newMachines()
	c, ctx := connect(t, m), t.Context()
	box := must(c.Run(ctx, sietch.RunRequest{From: "x"}))(t)
	p := must(box.StartProcess(ctx, sietch.ProcessRequest{Args: []string{"sleep", "60"}}))(t)
	if info := must(p.Wait(ctx, time.Nanosecond))(t); !info.Running {
		t.Errorf("got %+v", info)
	}
	data, next, err := p.Output(ctx, 4)
	if err != nil || string(data) != "456789" || next != 10 {
		t.Errorf("got %q, %d, %v", data, next, err)
	}
	r := must(p.Follow(ctx, 8))(t)
	if data := must(io.ReadAll(r))(t); string(data) != "89" {
		t.Errorf("got %q", data)
	}
	r.Close()
	if err := p.Kill(ctx); err != nil {
		t.Error(err)
	}
	if info := must(p.Wait(ctx, 0))(t); info.Running || info.ExitCode != 137 {
		t.Errorf("got %+v", info)
	}
	if list := must(box.Processes(ctx))(t); len(list) != 1 {
		t.Errorf("got %+v", list)
	}
	if err := p.Remove(ctx); err != nil {
		t.Error(err)
	}
	if _, err := p.Inspect(ctx); !errors.Is(err, sietch.NotFound) {
		t.Errorf("got %v", err)
	}
}

func TestPortsLogsAndEvents(t *testing.T) {
	m := newMachines()
	c, ctx := connect(t, m), t.Context()
	box := must(c.Run(ctx, sietch.RunRequest{From: "x"}))(t)
	p := must(box.AddPort(ctx, sietch.PortRequest{Guest: 80}))(t)
	if p.Host != 40000 || p.Guest != 80 {
		t.Errorf("got %+v", p)
	}
	if err := box.RemovePort(ctx, p); err != nil || m.last.(runtime.Port).Host != 40000 {
		t.Errorf("got %v, %v", err, m.last)
	}
	r := must(box.Logs(ctx, sietch.LogsRequest{Source: "main", Tail: 5}))(t)
	if data := must(io.ReadAll(r))(t); string(data) != "booted\n" || m.last.(runtime.LogsRequest).Tail != 5 {
		t.Errorf("got %q of %+v", data, m.last)
	}
	r.Close()
	ids := func(after int64) (ids []int64) {
		for e, err := range must(c.PastEvents(ctx, after))(t) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, e.Id)
		}
		return ids
	}
	if got := ids(0); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("got %v", got)
	}
	if got := ids(2); !slices.Equal(got, []int64{3}) {
		t.Errorf("got %v", got)
	}
	for e, err := range must(c.Events(ctx, 0))(t) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Id == 3 {
			break
		}
	}
}

func TestImages(t *testing.T) {
	c, ctx := connect(t, newMachines()), t.Context()
	var progress bytes.Buffer
	image := must(c.Build(ctx, sietch.BuildParams{Name: []string{"web"}, BuildArg: []string{"V=7"}}, strings.NewReader("a tar"), &progress))(t)
	if image.Name != "web" || image.Tag != "7" || !strings.Contains(progress.String(), "FROM scratch") {
		t.Errorf("got %+v after %q", image, progress.String())
	}
	if _, err := c.Build(ctx, sietch.BuildParams{Name: []string{"web"}}, strings.NewReader(""), nil); !errors.Is(err, sietch.Usage) {
		t.Errorf("got %v", err)
	}
	if image := must(c.InspectImage(ctx, "team/web:1"))(t); image.Name != "team/web:1" {
		t.Errorf("got %+v", image)
	}
	if list := must(c.Images(ctx))(t); len(list) != 1 {
		t.Errorf("got %+v", list)
	}
	if image := must(c.Pull(ctx, "alpine", nil))(t); image.Name != "alpine" {
		t.Errorf("got %+v", image)
	}
	if image := must(c.Bootstrap(ctx, "debian:bookworm", nil))(t); image.Name != "debian:bookworm" {
		t.Errorf("got %+v", image)
	}
	if err := c.RemoveImage(ctx, "web"); err != nil {
		t.Error(err)
	}
}
