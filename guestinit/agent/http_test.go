package agent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// serveTest runs a server and returns its address.
func serveTest(t *testing.T, o Options) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(o)
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Close()
		s.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return ln.Addr().String()
}

// TestRequests sends raw bytes and reads what comes back until the connection
// ends or is silent.
func TestRequests(t *testing.T) {
	addr := serveTest(t, Options{})
	status := "GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n"
	tests := []struct {
		name, send string
		want       []int // statuses of the answers
		closed     bool
	}{
		{"one", status, []int{200}, false},
		{"pipelined", status + status + status, []int{200, 200, 200}, false},
		{"bare newlines", "GET /v1/status HTTP/1.1\n\n", []int{200}, false},
		{"asked to close", "GET /v1/status HTTP/1.1\r\nconnection: CLOSE\r\n\r\n", []int{200}, true},
		{"HTTP/1.0", "GET /v1/status HTTP/1.0\r\n\r\n", []int{200}, true},
		{"no route", "GET /etc/passwd HTTP/1.1\r\n\r\n" + status, []int{404, 200}, false},
		{"method", "DELETE /v1/status HTTP/1.1\r\n\r\n" + status, []int{405, 200}, false},
		{"no upgrade", "POST /v1/exec HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}" + status, []int{426, 200}, false},
		{"other version", "GET /v1/status HTTP/1.1\r\nSietch-Version: 99\r\n\r\n" + status, []int{400, 200}, false},
		{"body is not JSON", "POST /v1/identity HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" + status, []int{400, 200}, false},
		{"identity", "POST /v1/identity HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}", []int{100, 200}, false},
		{"cannot power off", "POST /v1/shutdown HTTP/1.1\r\n\r\n", []int{500}, false},
		{"chunked", "POST /v1/identity HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", []int{411}, true},
		{"not HTTP", "\x16\x03\x01hello\r\n", []int{400}, true},
		{"header without colon", "GET /v1/status HTTP/1.1\r\nnonsense\r\n\r\n", []int{400}, true},
		{"negative length", "POST /v1/identity HTTP/1.1\r\nContent-Length: -1\r\n\r\n", []int{400}, true},
		{"huge length", "POST /v1/identity HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", []int{413}, true},
		{"long line", "GET /" + strings.Repeat("x", lineLimit) + " HTTP/1.1\r\n\r\n", []int{431}, true},
		{"many headers", "GET /v1/status HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", headerLimit+1) + "\r\n", []int{431}, true},
		{"relative path", "POST /v1/files/stat HTTP/1.1\r\nContent-Length: 18\r\n\r\n{\"path\":\"etc/foo\"}", []int{400}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if _, err := io.WriteString(nc, tt.send); err != nil {
				t.Fatal(err)
			}
			br := bufio.NewReader(nc)
			for i, want := range tt.want {
				nc.SetReadDeadline(time.Now().Add(5 * time.Second))
				resp, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Fatalf("answer %d: %v", i, err)
				}
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != want {
					t.Errorf("answer %d: %s %s, want %d", i, resp.Status, body, want)
				}
				if v := resp.Header.Get(proto.VersionHeader); want >= 200 && v != fmt.Sprint(proto.Version) {
					t.Errorf("answer %d: version %q", i, v)
				}
			}
			nc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, err = br.ReadByte()
			timeout, _ := err.(net.Error)
			if open := timeout != nil && timeout.Timeout(); open == tt.closed {
				t.Errorf("connection open: %v (%v), want %v", open, err, !tt.closed)
			}
		})
	}
}

// TestBadFrames: a client that talks nonsense is a client that is gone.
func TestBadFrames(t *testing.T) {
	addr := serveTest(t, Options{})
	for name, frames := range map[string]string{
		"unknown type":     "?\x00\x00\x00",
		"too long":         "i\xff\xff\xff",
		"stdin without":    "i\x00\x00\x01x",
		"resize too short": "r\x00\x00\x01x",
		"signal 0":         "s\x00\x00\x01\x00",
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			body := `{"args":["sh","-c","sleep 60; cat /dev/zero"]}`
			fmt.Fprintf(nc, "POST /v1/exec HTTP/1.1\r\nUpgrade: sietch-exec\r\nContent-Length: %d\r\n\r\n%s%s", len(body), body, frames)
			nc.SetReadDeadline(time.Now().Add(10 * time.Second))
			b, err := io.ReadAll(nc)
			if err, ok := err.(net.Error); ok && err.Timeout() {
				t.Errorf("connection stays open; got %q", b)
			}
		})
	}
}

// TestWindow: stdin beyond what was granted is refused, not buffered.
func TestWindow(t *testing.T) {
	in := newStdin(nil, false, nil)
	chunk := make([]byte, proto.StdinWindow/2)
	for i := range 3 {
		if err := in.put(chunk); (err != nil) != (i == 2) {
			t.Errorf("chunk %d: %v", i, err)
		}
	}
}
