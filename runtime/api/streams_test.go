package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sietch-dev/sietch/runtime"
)

// dialExec opens the WebSocket of exec and sends the first message.
func dialExec(t *testing.T, l *lab, start string) *websocket.Conn {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), l.h.URL+"/v1/sandboxes/box/exec", &websocket.DialOptions{Subprotocols: []string{ExecProtocol}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	if err := c.Write(t.Context(), websocket.MessageText, []byte(start)); err != nil {
		t.Fatal(err)
	}
	return c
}

// transcript reads to the last message: texts as they are, channels by number.
func transcript(t *testing.T, c *websocket.Conn) string {
	t.Helper()
	var b strings.Builder
	for {
		kind, data, err := c.Read(t.Context())
		if err != nil {
			if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
				t.Errorf("got end %v, want a normal one", err)
			}
			return b.String()
		}
		if kind == websocket.MessageBinary {
			b.WriteString(string('0'+data[0]) + ":" + string(data[1:]) + "\n")
		} else {
			b.WriteString(string(data) + "\n")
		}
	}
}

func TestExecStream(t *testing.T) {
	l := newLab(t, nil)
	l.exec = func(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
		stdio.Started()
		data, err := io.ReadAll(stdio.Stdin)
		if err != nil {
			return runtime.ExitStatus{}, err
		}
		size, sig := <-stdio.Resize, <-stdio.Signals
		io.WriteString(stdio.Stdout, strings.ToUpper(string(data)))
		json.NewEncoder(stdio.Stderr).Encode([]any{size.Rows, size.Cols, int(sig)})
		return runtime.ExitStatus{Code: 137, Signal: 9}, nil
	}
	c := dialExec(t, l, `{"args":["cat"],"stdin":true,"tty":true,"rows":5,"cols":6,"env":["A=b"]}`)
	for _, part := range []string{"\x00ab", "\x00cd"} {
		c.Write(t.Context(), websocket.MessageBinary, []byte(part))
	}
	for _, m := range []string{`{"type":"stdin_end"}`, `{"type":"resize","rows":50,"cols":80}`, `{"type":"signal","signal":"TERM"}`} {
		c.Write(t.Context(), websocket.MessageText, []byte(m))
	}
	want := "{\"type\":\"started\"}\n1:ABCD\n2:[50,80,15]\n\n{\"type\":\"exit\",\"exit_code\":137,\"signal\":9}\n"
	if got := transcript(t, c); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if call := strings.Join(l.called("Exec"), ""); !strings.Contains(call, `"Stdin":true,"TTY":true,"Rows":5,"Cols":6`) {
		t.Errorf("got %s", call)
	}
}

func TestExecStreamFailures(t *testing.T) {
	tests := []struct{ name, start, then, want string }{
		{"no JSON", `args`, ``, `"code":"usage"`},
		{"unknown field", `{"args":["x"],"nope":1}`, ``, `nope`},
		{"engine", `{"args":["x"]}`, ``, `"code":"busy"`},
		{"unknown message", `{"args":["x"]}`, `{"type":"dance"}`, `dance`},
	}
	for _, tt := range tests {
		l := newLab(t, nil)
		if tt.name == "engine" {
			l.fails["Exec"] = runtime.ErrBusy
		}
		l.exec = func(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
			<-ctx.Done()
			return runtime.ExitStatus{}, context.Cause(ctx)
		}
		c := dialExec(t, l, tt.start)
		if tt.then != "" {
			c.Write(t.Context(), websocket.MessageText, []byte(tt.then))
		}
		if got := transcript(t, c); !strings.Contains(got, `"type":"error"`) || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %s, want an error with %s", tt.name, got, tt.want)
		}
	}
	l := newLab(t, nil)
	_, resp, err := websocket.Dial(t.Context(), l.h.URL+"/v1/sandboxes/nobody/exec", nil)
	if err == nil || resp.StatusCode != 404 {
		t.Errorf("no such sandbox: got %v, want 404 before the upgrade", err)
	}
	if _, _, err := websocket.Dial(t.Context(), l.h.URL+"/v1/sandboxes/box/exec", &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"https://evil.example"}}}); err == nil {
		t.Error("a page of another origin may run commands")
	}
}

// TestExecEndsWithItsClient: the engine's context ends when the caller goes, on
// both routes.
func TestExecEndsWithItsClient(t *testing.T) {
	l := newLab(t, nil)
	began, ended := make(chan struct{}, 2), make(chan error, 2)
	l.exec = func(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return runtime.ExitStatus{}, ctx.Err()
	}
	c := dialExec(t, l, `{"args":["sleep"]}`)
	<-began
	c.CloseNow()
	waitFor(t, ended, "WebSocket")

	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "POST", l.h.URL+"/v1/sandboxes/box/exec", strings.NewReader(`{"args":["sleep"]}`))
	go l.h.Client().Do(r)
	<-began
	cancel()
	waitFor(t, ended, "POST")
}

func waitFor(t *testing.T, c <-chan error, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: the exec goes on without its client", what)
	}
}

// TestSlowReaderSlowsTheWriter: what is not read is not kept.
func TestSlowReaderSlowsTheWriter(t *testing.T) {
	l := newLab(t, nil)
	written := make(chan int64, 1)
	const most = 64 << 20 // far more than the buffers of two sockets
	l.exec = func(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
		block, n := make([]byte, 64<<10), int64(0)
		for n < most {
			if _, err := stdio.Stdout.Write(block); err != nil {
				written <- n
				return runtime.ExitStatus{}, err
			}
			n += int64(len(block))
		}
		written <- n
		return runtime.ExitStatus{}, nil
	}
	c := dialExec(t, l, `{"args":["yes"]}`)
	if _, _, err := c.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	c.CloseNow()
	select {
	case n := <-written:
		if n > 32<<20 {
			t.Errorf("%d bytes were taken from the command although nobody read", n)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the writer is still stuck after its reader has gone")
	}
}

func TestOutputIsBounded(t *testing.T) {
	l := newLab(t, nil)
	l.exec = func(_ context.Context, _ runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
		stdio.Stdout.Write([]byte("0123456789"))
		stdio.Stderr.Write([]byte("\xff\x00"))
		return runtime.ExitStatus{}, nil
	}
	a := l.do(t, "POST", "/v1/sandboxes/box/exec", `{"args":["x"],"max_output_bytes":4}`)
	if !strings.Contains(a.body, `"stdout":"0123"`) || !strings.Contains(a.body, `"truncated":true`) || !strings.Contains(a.body, `"stderr_base64":"/wA="`) {
		t.Errorf("got %s", a.body)
	}
	if l.s.budget.free != outputBudget {
		t.Errorf("%d bytes of the budget are lost", outputBudget-l.s.budget.free)
	}
	// All together have a bound too.
	l.s.budget.free = 3
	if a := l.do(t, "POST", "/v1/sandboxes/box/exec", `{"args":["x"]}`); !strings.Contains(a.body, `"stdout":"012"`) {
		t.Errorf("got %s, want what there was room for", a.body)
	}
}

func TestFollowedOutputHasATrailer(t *testing.T) {
	l := newLab(t, nil)
	a, err := http.Get(l.h.URL + "/v1/sandboxes/box/processes/p1/output?follow=true&offset=2")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	data, err := io.ReadAll(a.Body)
	if err != nil || string(data) != "234567" || a.Trailer.Get(offsetHeader) != "8" {
		t.Errorf("got %q, trailer %v, %v", data, a.Trailer, err)
	}
}

func TestShutdownEndsStreams(t *testing.T) {
	l := newLab(t, nil)
	l.events = func(ctx context.Context, each func(runtime.Event) error) error {
		if err := each(runtime.Event{ID: 1, Type: "gc"}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	a, err := http.Get(l.h.URL + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b := bufio.NewReader(a.Body)
	if line, err := b.ReadString('\n'); err != nil || line != "id: 1\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	l.s.Drain()
	if _, err := io.Copy(io.Discard, b); err != nil {
		t.Errorf("got %v, want the end", err)
	}
	if resp := l.do(t, "GET", "/healthz", ""); resp.status != 503 || !strings.Contains(resp.body, "shutting_down") {
		t.Errorf("got %d %s, want 503", resp.status, resp.body)
	}
}

// service is what listens in the guest.
func service(t *testing.T, l *lab) {
	t.Helper()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ws" {
			c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
			if err != nil {
				return
			}
			defer c.CloseNow()
			_, data, err := c.Read(r.Context())
			if err == nil {
				c.Write(r.Context(), websocket.MessageText, append([]byte("echo "), data...))
				c.Close(websocket.StatusNormalClosure, "")
			}
			return
		}
		w.Header().Set("Set-Cookie", "a=b")
		json.NewEncoder(w).Encode([]string{r.Method, r.URL.RequestURI(), r.Header.Get("X-Forwarded-Prefix"), r.Header.Get("Authorization"), r.Header.Get("Sietch-Token")})
	}))
	t.Cleanup(h.Close)
	l.dial = func(port uint16) (net.Conn, error) {
		if port != 8080 {
			return nil, syscall.ECONNREFUSED
		}
		return net.Dial("tcp", h.Listener.Addr().String())
	}
}

func TestProxy(t *testing.T) {
	k, secrets := tokens(t, Token{Name: "one"})
	for _, tt := range []struct {
		name, path, host string
		headers          []string
		status           int
		want             string
	}{
		{"path", "/v1/sandboxes/box/proxy/8080/a%2Fb/c?x=1", "", nil, 200, `["GET","/a%2Fb/c?x=1","/v1/sandboxes/box/proxy/8080","",""]`},
		{"under vms", "/v1/vms/box/proxy/8080/", "", nil, 200, `["GET","/","/v1/vms/box/proxy/8080","",""]`},
		{"without prefix", "/vms/box/proxy/8080/z", "", nil, 200, `["GET","/z",`},
		{"host name", "/v1/sandboxes?all=1", "8080-box.localhost:7000", nil, 200, `["GET","/v1/sandboxes?all=1","","",""]`},
		{"its own authorization", "/v1/sandboxes/box/proxy/8080/", "", []string{"Authorization", "Bearer its"}, 200, `"Bearer its",""]`},
		{"nobody listens", "/v1/sandboxes/box/proxy/81/", "", nil, 502, `"unreachable"`},
		{"paused", "/v1/sandboxes/lab/proxy/8080/", "", nil, 409, `"wrong_state"`},
		{"nobody", "/v1/sandboxes/nobody/proxy/8080/", "", nil, 404, `"not_found"`},
		{"no name", "/v1/sandboxes/%17%C3%92/proxy/8080/", "", nil, 400, `"usage"`},
		{"no port", "/v1/sandboxes/box/proxy/0/", "", nil, 400, `"usage"`},
		{"with a token", "/v1/sandboxes/box/proxy/8080/", "", []string{"Sietch-Token", "SECRET", "Authorization", "Basic x"}, 200, `"Basic x",""]`},
		{"token as bearer", "/v1/sandboxes/box/proxy/8080/", "", []string{"Authorization", "Bearer SECRET"}, 200, `"",""]`},
		{"no token", "/", "8080-box.localhost", []string{"X-With", "tokens"}, 401, `"unauthorized"`},
	} {
		secured := len(tt.headers) > 0 && tt.name != "its own authorization"
		l := newLab(t, func(o *Options) {
			if secured {
				o.Tokens = k
			}
		})
		service(t, l)
		var headers []string
		for _, h := range tt.headers {
			headers = append(headers, strings.ReplaceAll(h, "SECRET", secrets[0]))
		}
		if tt.host != "" {
			headers = append(headers, "Host", tt.host)
		}
		r, _ := http.NewRequest("GET", l.h.URL+tt.path, nil)
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
			if headers[i] == "Host" {
				r.Host = headers[i+1]
			}
		}
		a, err := l.h.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(a.Body)
		a.Body.Close()
		if a.StatusCode != tt.status || !strings.Contains(string(data), tt.want) {
			t.Errorf("%s: got %d %s, want %d %s", tt.name, a.StatusCode, data, tt.status, tt.want)
		}
		sandboxed := strings.Contains(a.Header.Get("Content-Security-Policy"), "sandbox")
		if a.StatusCode == 200 && sandboxed != (tt.host == "") {
			t.Errorf("%s: pages of the guest in an origin of their own: %v", tt.name, sandboxed)
		}
	}
}

func TestProxyOfWebSockets(t *testing.T) {
	l := newLab(t, nil)
	service(t, l)
	c, _, err := websocket.Dial(t.Context(), l.h.URL+"/v1/sandboxes/box/proxy/8080/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.Write(t.Context(), websocket.MessageText, []byte("hi"))
	if _, data, err := c.Read(t.Context()); err != nil || string(data) != "echo hi" {
		t.Errorf("got %q, %v", data, err)
	}
}
