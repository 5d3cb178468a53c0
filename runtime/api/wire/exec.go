package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/coder/websocket"

	"github.com/sietch-dev/sietch/runtime/api/client"
)

// ExecProtocol is the WebSocket subprotocol of exec; see openapi.yaml.
const ExecProtocol = "sietch.exec.v1"

const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2

	stdinPiece = 64 << 10 // the server takes no messages beyond 256 KiB
)

// ExitStatus says how a command ended, as a shell does: 126 not executable, 127
// not found, 124 timed out, 128+n ended by signal n.
type ExitStatus struct {
	Code   int
	Signal int
	Reason string // why it could not be run
}

// Exec is a running command over a WebSocket.
//
// One goroutine may read ([Exec.Copy], [Exec.Next]) while another one writes.
type Exec struct {
	// Started, when set before the first Next, is called once the command runs.
	Started func()

	ctx  context.Context
	conn *websocket.Conn
	once sync.Once

	// What of the window is left, for a command that was started with one.
	mu     sync.Mutex
	room   sync.Cond
	window bool
	free   int
	ended  bool
}

// StartExec runs a command whose output comes as it is written. When ctx ends, or
// the Exec is closed, the command and all it started are ended. With a window,
// [Exec.Write] waits until the command has taken what is on the way, which
// somebody who calls Next has to hear.
func StartExec(ctx context.Context, s Server, name string, q client.ExecStart) (*Exec, error) {
	conn, err := s.dial(ctx, "/v1/sandboxes/"+url.PathEscape(name)+"/exec", ExecProtocol, name)
	if err != nil {
		return nil, err
	}
	x := &Exec{ctx: ctx, conn: conn, window: q.Window > 0, free: q.Window}
	x.room.L = &x.mu
	data, err := json.Marshal(q)
	if err == nil {
		err = conn.Write(ctx, websocket.MessageText, data)
	}
	if err != nil {
		x.Close()
		return nil, fmt.Errorf("start command in %s: %w", name, err)
	}
	return x, nil
}

// Next gives the next piece of output; exit is set instead when the command has
// ended. A reader that is slow slows the command.
func (x *Exec) Next() (stderr bool, data []byte, exit *ExitStatus, err error) {
	for {
		kind, m, err := x.conn.Read(x.ctx)
		if err != nil {
			return false, nil, nil, fmt.Errorf("read output: %w", errors.Join(context.Cause(x.ctx), err))
		}
		if kind == websocket.MessageBinary {
			if len(m) == 0 || m[0] != channelStdout && m[0] != channelStderr {
				return false, nil, nil, fmt.Errorf("read output: %w", ErrProtocol)
			}
			return m[0] == channelStderr, m[1:], nil, nil
		}
		var said struct {
			Type     string            `json:"type"`
			ExitCode int               `json:"exit_code"`
			Signal   int               `json:"signal"`
			Bytes    int               `json:"bytes"`
			Reason   string            `json:"reason"`
			Error    *client.ErrorBody `json:"error"`
		}
		if err := json.Unmarshal(m, &said); err != nil {
			return false, nil, nil, fmt.Errorf("read output: %w", ErrProtocol)
		}
		switch {
		case said.Type == "exit":
			return false, nil, &ExitStatus{Code: said.ExitCode, Signal: said.Signal, Reason: said.Reason}, nil
		case said.Type == "error" && said.Error != nil:
			return false, nil, nil, errorOf(said.Error, 0, "")
		case said.Type == "taken":
			x.grant(said.Bytes)
		case said.Type == "started" && x.Started != nil:
			x.Started()
		}
		// And what newer servers say.
	}
}

func (x *Exec) grant(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.free += n
	x.room.Broadcast()
}

// reserve waits until some of n bytes may go on their way, and says how many; 0
// when the command has ended.
func (x *Exec) reserve(n int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.window {
		return n
	}
	for x.free <= 0 && !x.ended {
		x.room.Wait()
	}
	if x.ended {
		return 0
	}
	n = min(n, x.free)
	x.free -= n
	return n
}

// Copy writes the output until the command ends; nil writers discard. It closes
// the stream.
func (x *Exec) Copy(stdout, stderr io.Writer) (ExitStatus, error) {
	defer x.Close()
	for {
		isErr, data, exit, err := x.Next()
		switch {
		case err != nil:
			return ExitStatus{}, err
		case exit != nil:
			return *exit, nil
		}
		w := stdout
		if isErr {
			w = stderr
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(data); err != nil {
			return ExitStatus{}, err
		}
	}
}

// Write sends input, for a command that was started with Stdin. It waits for a
// command that is slow to read.
func (x *Exec) Write(p []byte) (int, error) {
	written := 0
	for len(p) > written {
		n := x.reserve(min(len(p)-written, stdinPiece))
		if n == 0 {
			return written, fmt.Errorf("write input: %w", io.ErrClosedPipe)
		}
		if err := x.conn.Write(x.ctx, websocket.MessageBinary, append([]byte{channelStdin}, p[written:written+n]...)); err != nil {
			return written, fmt.Errorf("write input: %w", err)
		}
		written += n
	}
	return written, nil
}

// CloseStdin says that there is no more input.
func (x *Exec) CloseStdin() error { return x.say(map[string]any{"type": "stdin_end"}) }

// Resize gives the terminal another size.
func (x *Exec) Resize(rows, cols int) error {
	return x.say(map[string]any{"type": "resize", "rows": rows, "cols": cols})
}

// Signal sends a signal by its name, such as TERM, or number.
func (x *Exec) Signal(signal string) error {
	return x.say(map[string]any{"type": "signal", "signal": signal})
}

func (x *Exec) say(m map[string]any) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return x.conn.Write(x.ctx, websocket.MessageText, data)
}

// Close ends the command, if it has not ended. Idempotent.
func (x *Exec) Close() error {
	x.once.Do(func() {
		x.mu.Lock()
		x.ended = true
		x.room.Broadcast()
		x.mu.Unlock()
		x.conn.CloseNow()
	})
	return nil
}

var _ io.WriteCloser = (*Exec)(nil)

// Server is where WebSockets are opened.
type Server struct {
	URL    string // http://… without a slash at the end
	HTTP   *http.Client
	Header http.Header // of each request; may be nil
}

// dial opens a WebSocket; a refusal is an [*Error].
func (s Server) dial(ctx context.Context, path, protocol, name string) (*websocket.Conn, error) {
	conn, resp, err := websocket.Dial(ctx, s.URL+path, &websocket.DialOptions{
		HTTPClient: s.HTTP, HTTPHeader: s.Header, Subprotocols: []string{protocol}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
			return nil, refusal(resp)
		}
		return nil, fmt.Errorf("open stream to %s: %w", name, err)
	}
	conn.SetReadLimit(-1)
	return conn, nil
}
