package sietch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/sietch-dev/sietch/runtime/api/client"
)

// execProtocol is the WebSocket subprotocol of exec; see openapi.yaml.
const execProtocol = "sietch.exec.v1"

const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2

	stdinPiece = 64 << 10 // the server takes no messages beyond 256 KiB
)

// Exec runs a command to its end. A failed command is no error: see
// [ExecResult.ExitCode]. Of each stream 16 MiB are kept.
func (s *Sandbox) Exec(ctx context.Context, args ...string) (ExecResult, error) {
	return s.ExecWith(ctx, ExecRequest{Args: args})
}

// ExecWith is Exec with all options.
func (s *Sandbox) ExecWith(ctx context.Context, q ExecRequest) (ExecResult, error) {
	return answer[ExecResult](s.c.api.Exec(ctx, s.Name, nil, q))
}

// ExitStatus says how a command ended, as a shell does: 126 not executable, 127
// not found, 124 timed out, 128+n ended by signal n.
type ExitStatus struct {
	Code   int
	Signal int
	Reason string // why it could not be run
}

// ExecStream is a running command.
type ExecStream struct {
	ctx  context.Context
	conn *websocket.Conn
	once sync.Once
}

// ExecStream runs a command whose output comes as it is written. When ctx ends,
// or the stream is closed, the command and all it started are ended.
//
// One goroutine may read ([ExecStream.Copy], [ExecStream.Next]) while another
// one writes.
func (s *Sandbox) ExecStream(ctx context.Context, q ExecStart) (*ExecStream, error) {
	header := http.Header{}
	s.c.authorize(header)
	address := "ws" + strings.TrimPrefix(s.c.url, "http") + "/v1/sandboxes/" + url.PathEscape(s.Name) + "/exec"
	conn, resp, err := websocket.Dial(ctx, address, &websocket.DialOptions{
		HTTPClient: s.c.http, HTTPHeader: header, Subprotocols: []string{execProtocol}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
			return nil, refusal(resp)
		}
		return nil, fmt.Errorf("open stream to %s: %w", s.Name, err)
	}
	conn.SetReadLimit(-1)
	x := &ExecStream{ctx: ctx, conn: conn}
	data, err := json.Marshal(q)
	if err == nil {
		err = conn.Write(ctx, websocket.MessageText, data)
	}
	if err != nil {
		x.Close()
		return nil, fmt.Errorf("start command in %s: %w", s.Name, err)
	}
	return x, nil
}

// Next gives the next piece of output; exit is set instead when the command has
// ended. A reader that is slow slows the command.
func (x *ExecStream) Next() (stderr bool, data []byte, exit *ExitStatus, err error) {
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
		}
		// "started", and what newer servers say.
	}
}

// Copy writes the output until the command ends; nil writers discard. It closes
// the stream.
func (x *ExecStream) Copy(stdout, stderr io.Writer) (ExitStatus, error) {
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
func (x *ExecStream) Write(p []byte) (int, error) {
	written := 0
	for len(p) > written {
		piece := p[written:min(len(p), written+stdinPiece)]
		if err := x.conn.Write(x.ctx, websocket.MessageBinary, append([]byte{channelStdin}, piece...)); err != nil {
			return written, fmt.Errorf("write input: %w", err)
		}
		written += len(piece)
	}
	return written, nil
}

// CloseStdin says that there is no more input.
func (x *ExecStream) CloseStdin() error { return x.say(map[string]any{"type": "stdin_end"}) }

// Resize gives the terminal another size.
func (x *ExecStream) Resize(rows, cols int) error {
	return x.say(map[string]any{"type": "resize", "rows": rows, "cols": cols})
}

// Signal sends a signal by its name, such as TERM, or number.
func (x *ExecStream) Signal(signal string) error {
	return x.say(map[string]any{"type": "signal", "signal": signal})
}

func (x *ExecStream) say(m map[string]any) error {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(m); err != nil {
		return err
	}
	return x.conn.Write(x.ctx, websocket.MessageText, b.Bytes())
}

// Close ends the command, if it has not ended. Idempotent.
func (x *ExecStream) Close() error {
	x.once.Do(func() { x.conn.CloseNow() })
	return nil
}

var _ io.WriteCloser = (*ExecStream)(nil)
