package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
)

// TestHTTP wants every request to get the engine of its own caller, and a call to
// end with its client.
func TestHTTP(t *testing.T) {
	mine, others := newFake(), newFake()
	h := Handler(func(r *http.Request) runtime.Engine {
		if r.Header.Get("Authorization") == "mine" {
			return mine
		}
		return others
	}, Options{})
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)

	s := &session{t: t, engine: mine}
	s.attach(&sdk.StreamableClientTransport{Endpoint: server.URL, HTTPClient: &http.Client{Transport: as("mine")}, DisableStandaloneSSE: true})
	defer s.Close()
	o := &session{t: t, engine: others}
	o.attach(&sdk.StreamableClientTransport{Endpoint: server.URL, HTTPClient: &http.Client{Transport: as("")}, DisableStandaloneSSE: true})
	defer o.Close()

	contains(t, s.ok("start_sandbox", args{"name": "web"}), "web is running")
	contains(t, o.ok("list_sandboxes", nil), "no sandbox")
	contains(t, s.ok("list_sandboxes", nil), "web is running")

	p := &sdk.CallToolParams{Name: "fork", Arguments: args{"from": "web", "n": 3, "prefix": "f"}}
	p.SetProgressToken("token")
	if _, err := s.CallTool(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); s.heard("token") < 3 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
	}
	if s.heard("token") < 3 {
		t.Errorf("progress was told %d times over HTTP", s.heard("token"))
	}

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_command","arguments":{"vm_name":"web","cmd":"wait"}}}`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "mine")
	if a, err := http.DefaultClient.Do(r); err == nil {
		io.Copy(io.Discard, a.Body)
		a.Body.Close()
	}
	select {
	case <-mine.ended:
	case <-time.After(10 * time.Second):
		t.Error("the command goes on when its client has gone")
	}
}

type as string

func (a as) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if a != "" {
		r.Header.Set("Authorization", string(a))
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestHTTPLimits wants what is no message refused before anything is done.
func TestHTTPLimits(t *testing.T) {
	server := httptest.NewServer(Handler(func(*http.Request) runtime.Engine { return newFake() }, Options{MaxRequestBytes: 1 << 10}))
	t.Cleanup(server.Close)
	tests := []struct {
		name, method, kind, body string
		want                     int
	}{
		{"another method", http.MethodGet, "application/json", "", http.StatusMethodNotAllowed},
		{"another type", http.MethodPost, "text/plain", "{}", http.StatusUnsupportedMediaType},
		{"no JSON", http.MethodPost, "application/json", "{", http.StatusBadRequest},
		{"too long", http.MethodPost, "application/json", `{"jsonrpc":"2.0","id":1,"method":"ping","x":"` + strings.Repeat("x", 2<<10) + `"}`, http.StatusRequestEntityTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), tt.method, server.URL, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", tt.kind)
			r.Header.Set("Accept", "application/json, text/event-stream")
			a, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Body.Close()
			if a.StatusCode != tt.want {
				t.Errorf("status %d, want %d", a.StatusCode, tt.want)
			}
		})
	}
}

// TestStdio wants one message a line on the output, nothing else, and the end of
// the input to be the end, also of calls under way.
func TestStdio(t *testing.T) {
	f := newFake()
	in, requests := io.Pipe()
	answers, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- ServeStdio(t.Context(), f, Options{}, in, out)
		out.Close()
	}()
	lines := bufio.NewScanner(answers)
	ask := func(line string) map[string]any {
		t.Helper()
		if _, err := io.WriteString(requests, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() {
			t.Fatalf("no answer to %s: %v", line, lines.Err())
		}
		var v map[string]any
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		return v
	}
	a := ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}`)
	result := asMap(a["result"])
	if asMap(result["serverInfo"])["name"] != "sietch" || result["protocolVersion"] != "2025-06-18" || result["instructions"] == "" {
		t.Errorf("initialize: %v", a)
	}
	io.WriteString(requests, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	a = ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"start_sandbox","arguments":{"name":"web"}}}`)
	if asMap(a["result"])["isError"] != nil {
		t.Errorf("start_sandbox: %v", a)
	}
	io.WriteString(requests, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"run_command","arguments":{"vm_name":"web","cmd":"wait"}}}`+"\n")
	time.Sleep(50 * time.Millisecond)
	requests.Close()
	go io.Copy(io.Discard, answers)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on when its input has ended")
	}
	select {
	case <-f.ended:
	default:
		t.Error("the command goes on")
	}
}

// fakeVNC is a VNC server with two by two pixels of one colour.
func fakeVNC(t *testing.T) func() (io.ReadWriteCloser, error) {
	return func() (io.ReadWriteCloser, error) {
		here, there := net.Pipe()
		t.Cleanup(func() { there.Close() })
		go func() {
			defer there.Close()
			say := func(b ...byte) { there.Write(b) }
			hear := func(n int) { io.ReadFull(there, make([]byte, n)) }
			io.WriteString(there, "RFB 003.008\n")
			hear(12)
			say(1, 1)
			hear(1)
			say(0, 0, 0, 0)
			hear(1)
			say(append([]byte{0, 2, 0, 2}, append(make([]byte, 16), 0, 0, 0, 0)...)...)
			hear(20 + 12 + 10) // pixel format, encodings, request
			say(0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0, 2, 0, 0, 0, 0)
			for range 4 {
				say(10, 20, 30, 0)
			}
			hear(1)
		}()
		return here, nil
	}
}
