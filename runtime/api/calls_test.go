package api

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sietch-dev/sietch/runtime"
)

// TestCancelCall ends a call under way by its name, which only its maker can.
func TestCancelCall(t *testing.T) {
	k, secrets := tokens(t, Token{Name: "mine"}, Token{Name: "theirs"})
	l := newLab(t, func(o *Options) { o.Tokens = k })
	began := make(chan struct{})
	l.run = func(ctx context.Context, _ runtime.RunRequest) error {
		close(began)
		<-ctx.Done()
		return &runtime.Error{Message: "boot new", Err: context.Cause(ctx)}
	}
	mine, theirs := "Bearer "+secrets[0], "Bearer "+secrets[1]
	answer := make(chan reply, 1)
	go func() {
		answer <- l.do(t, "POST", "/v1/sandboxes", `{"from":"debian:bookworm"}`, "X-Request-Id", "one", "Authorization", mine)
	}()
	<-began
	if a := l.do(t, "DELETE", "/v1/calls/one", "", "Authorization", theirs); a.status != 404 {
		t.Errorf("somebody else's call: got %d %s, want 404", a.status, a.body)
	}
	if a := l.do(t, "DELETE", "/v1/calls/one", "", "Authorization", mine); a.status != 204 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if a := <-answer; a.status != statusCanceled || !strings.Contains(a.body, `"code":"canceled","message":"boot new: context canceled"`) {
		t.Errorf("the call was answered with %d %s", a.status, a.body)
	}
	if a := l.do(t, "DELETE", "/v1/calls/one", "", "Authorization", mine); a.status != 404 {
		t.Errorf("a call that has ended: got %d, want 404", a.status)
	}
	if n := len(l.s.calls.m); n != 0 {
		t.Errorf("%d calls are remembered after their end", n)
	}
}

// broken is an engine whose archives end on the way.
type broken struct{ *fakeEngine }

func (broken) CopyOut(_ context.Context, _ runtime.CopyOutRequest, w io.Writer) error {
	io.WriteString(w, "part")
	return &runtime.Error{Kind: runtime.ErrState, Message: "the machine went", Hint: "sietch ps"}
}

// TestErrorTrailer tells who asked for it why a body is not whole, and breaks off
// for all others.
func TestErrorTrailer(t *testing.T) {
	l := newLab(t, func(o *Options) { o.Engine = broken{newFake()} })
	for _, te := range []string{"", "trailers"} {
		r, err := http.NewRequest("GET", l.h.URL+"/v1/sandboxes/box/files/tar?path=/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		if te != "" {
			r.Header.Set("TE", te)
		}
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(a.Body)
		a.Body.Close()
		said := a.Trailer.Get(errorTrailer)
		switch {
		case string(data) != "part":
			t.Errorf("TE %q: got %q", te, data)
		case te == "" && err == nil:
			t.Error("a part was passed off as the whole")
		case te != "" && (err != nil || !strings.Contains(said, `"code":"wrong_state"`) || !strings.Contains(said, `"message":"the machine went"`)):
			t.Errorf("got trailer %q, %v", said, err)
		}
	}
}

// TestCallerShell takes the shell's word for requests by the socket, where the
// engine judges them, and nobody's else.
func TestCallerShell(t *testing.T) {
	dir := t.TempDir()
	f := newFake()
	f.fails["Resize"] = &runtime.Error{Kind: runtime.ErrUsage, Message: "the engine's own words"}
	urls, stop := serveHere(t, Options{Engine: f, MaxBodyBytes: 10}, Listen{DataDir: dir, Addresses: []string{"127.0.0.1:0"}})
	defer stop()
	ask := func(c *http.Client, url string) string {
		r, err := http.NewRequest("POST", url+"/v1/sandboxes/box/resize", strings.NewReader(`{"cpus":0.001}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(callerHeader, callerShell)
		r.Header.Set("Content-Type", "application/json")
		a, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		data, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	local := unixClient(filepath.Join(dir, SocketName))
	defer local.CloseIdleConnections()
	if got := ask(local, "http://localhost"); !strings.Contains(got, "the engine's own words") {
		t.Errorf("by the socket: got %s", got)
	}
	if got := ask(http.DefaultClient, urls[0]); !strings.Contains(got, "too_large") {
		t.Errorf("by address: got %s, want the bounds of the server", got)
	}
}

// TestWindow counts what a command has taken of its stdin.
func TestWindow(t *testing.T) {
	l := newLab(t, nil)
	l.exec = func(_ context.Context, _ runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
		if _, err := io.ReadFull(stdio.Stdin, make([]byte, 5)); err != nil {
			return runtime.ExitStatus{}, err
		}
		<-stdio.Signals
		return runtime.ExitStatus{}, nil
	}
	c := dialExec(t, l, `{"args":["x"],"stdin":true,"window":65536}`)
	if err := c.Write(t.Context(), websocket.MessageBinary, []byte("\x00hello")); err != nil {
		t.Fatal(err)
	}
	kind, data, err := c.Read(t.Context())
	if err != nil || kind != websocket.MessageText || string(data) != `{"type":"taken","bytes":5}` {
		t.Errorf("got %s, %v", data, err)
	}
	if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"type":"signal","signal":"TERM"}`)); err != nil {
		t.Fatal(err)
	}
	if got := transcript(t, c); !strings.Contains(got, `"exit"`) {
		t.Errorf("got %s", got)
	}
	if got := transcript(t, dialExec(t, l, `{"args":["x"],"window":9999999}`)); !strings.Contains(got, "out of range") {
		t.Errorf("a window too large: got %s", got)
	}
}
