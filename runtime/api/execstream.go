package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/sietch-dev/sietch/runtime"
)

// ExecProtocol is the WebSocket subprotocol of exec.
const ExecProtocol = "sietch.exec.v1"

// Channels of its binary messages.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
)

const (
	execMessage = 256 << 10 // bytes of one message from a client
	maxWindow   = 1 << 20
	startWait   = 30 * time.Second
	inputAhead  = 64 // messages of stdin that wait for a command to read them
	sendWait    = 10 * time.Second
)

// execMessageIn is a text message from the client.
type execMessageIn struct {
	Type   string          `json:"type"`
	Rows   uint16          `json:"rows"`
	Cols   uint16          `json:"cols"`
	Signal json.RawMessage `json:"signal"`
}

// execMessageOut is a text message to the client.
type execMessageOut struct {
	Type     string     `json:"type"`
	ExitCode *int       `json:"exit_code,omitempty"`
	Signal   int        `json:"signal,omitempty"`
	Bytes    int        `json:"bytes,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Error    *ErrorBody `json:"error,omitempty"`
}

// ExecStream is GET /v1/sandboxes/{name}/exec, a WebSocket.
func (s *Server) ExecStream(w http.ResponseWriter, r *http.Request, name SandboxName) {
	if !s.isWebSocket(w, r, "POST to it runs a command and answers with JSON") {
		return
	}
	engine := s.as(r)
	// What can be known before is an HTTP answer, which every client can read.
	if !callOf(r).shell {
		if _, err := engine.Inspect(r.Context(), name); err != nil {
			s.fail(w, r, err)
			return
		}
	}
	conn, end := s.accept(w, r, ExecProtocol, "exec")
	if conn == nil {
		return
	}
	defer end()

	// The connection's own context: that of the request ends with the upgrade's.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer cancel(nil)
	x := &execConn{conn: conn, ctx: ctx}
	start, err := x.start()
	if err != nil {
		callOf(r).err = err
		x.end(execMessageOut{Type: "error", Error: bodyOf(err)})
		return
	}
	callOf(r).err = x.run(cancel, engine, name, start)
}

// isWebSocket refuses a request that does not ask for one; elsewhere says where
// such a one is served.
func (s *Server) isWebSocket(w http.ResponseWriter, r *http.Request, elsewhere string) bool {
	if r.Header.Get("Upgrade") != "" {
		return true
	}
	w.Header().Set("Upgrade", "websocket")
	s.fail(w, r, refusal(errUpgradeRequired, "this route is a WebSocket", elsewhere))
	return false
}

// accept makes a WebSocket of a request and counts it as a stream of its kind
// until end is called. Where it cannot it has answered, and conn is nil.
func (s *Server) accept(w http.ResponseWriter, r *http.Request, protocol, kind string) (conn *websocket.Conn, end func()) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}})
	if err != nil {
		callOf(r).err = err
		return nil, nil
	}
	conn.SetReadLimit(execMessage)
	open := s.metrics.streams.WithLabelValues(kind)
	open.Inc()
	return conn, func() {
		open.Dec()
		conn.CloseNow()
	}
}

func bodyOf(err error) *ErrorBody {
	_, b := explain(err)
	return &b
}

// execConn is one exec over a WebSocket.
type execConn struct {
	conn *websocket.Conn
	ctx  context.Context
}

// start reads the first message.
func (x *execConn) start() (ExecStart, error) {
	ctx, cancel := context.WithTimeout(x.ctx, startWait)
	defer cancel()
	var q ExecStart
	kind, data, err := x.conn.Read(ctx)
	if err != nil {
		return q, usage("no request came", "the first message is a text: {\"args\":[…]}")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if kind != websocket.MessageText {
		return q, usage("the first message is not a text", "it is {\"args\":[…]}")
	}
	if err := d.Decode(&q); err != nil {
		return q, jsonError(err)
	}
	if q.Rows < 0 || q.Rows > 65535 || q.Cols < 0 || q.Cols > 65535 || q.TimeoutMs < 0 || q.Window < 0 || q.Window > maxWindow {
		return q, usage("rows, cols, timeout_ms or window is out of range", "")
	}
	return q, nil
}

// run executes and says how it ended; one goroutine reads what the client sends,
// one feeds stdin.
func (x *execConn) run(cancel context.CancelCauseFunc, engine runtime.Engine, name string, q ExecStart) error {
	resize, signals := make(chan runtime.TTYSize), make(chan syscall.Signal, 16)
	in, feed := io.Pipe()
	input := make(chan []byte, inputAhead)
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(input)
		if err := x.receive(ended, input, resize, signals); err != nil {
			cancel(err)
		}
	})
	wg.Go(func() {
		for data := range input {
			if data == nil { // the client's stdin has ended
				feed.Close()
				continue
			}
			_, err := feed.Write(data)
			if q.Window > 0 {
				x.text(execMessageOut{Type: "taken", Bytes: len(data)})
			}
			if err != nil {
				for data := range input { // what nobody reads any more is dropped
					if q.Window > 0 {
						x.text(execMessageOut{Type: "taken", Bytes: len(data)})
					}
				}
				return
			}
		}
		feed.Close()
	})

	var stdin io.Reader
	if q.Stdin {
		stdin = in
	}
	status, err := engine.Exec(x.ctx, runtime.ExecRequest{
		Name: name, Args: q.Args, Env: q.Env, WorkingDir: q.Workdir, User: q.User,
		Stdin: q.Stdin, TTY: q.Tty, Rows: uint16(q.Rows), Cols: uint16(q.Cols), Timeout: milliseconds(q.TimeoutMs),
	}, runtime.ExecIO{
		Started: func() { x.text(execMessageOut{Type: "started"}) },
		Stdin:   stdin,
		Stdout:  channel{x, channelStdout}, Stderr: channel{x, channelStderr},
		Resize: resize, Signals: signals,
	})
	if gone := context.Cause(x.ctx); err != nil && gone != nil {
		err = gone
	}
	close(ended)
	in.Close()
	// The last message goes before the goroutines are waited for: they may be in
	// a Read that only the end of the connection ends.
	defer wg.Wait()
	defer x.conn.CloseNow()
	if err != nil {
		x.end(execMessageOut{Type: "error", Error: bodyOf(err)})
	} else {
		x.end(execMessageOut{Type: "exit", ExitCode: &status.Code, Signal: status.Signal, Reason: status.Error})
	}
	return err
}

var errStdinEnded = usage("data for stdin came after stdin_end", "")

// receive reads messages until the connection or the exec ends.
func (x *execConn) receive(ended <-chan struct{}, input chan<- []byte, resize chan<- runtime.TTYSize, signals chan<- syscall.Signal) error {
	stdinEnded := false
	for {
		kind, data, err := x.conn.Read(x.ctx)
		select {
		case <-ended:
			return nil
		default:
		}
		if err != nil {
			return fmt.Errorf("client has gone: %w", context.Canceled)
		}
		if kind == websocket.MessageBinary {
			switch {
			case len(data) == 0 || data[0] != channelStdin:
				return usage("a binary message is not for channel 0", "")
			case stdinEnded:
				return errStdinEnded
			}
			select {
			case input <- data[1:]:
			case <-ended:
				return nil
			}
			continue
		}
		var m execMessageIn
		if err := json.Unmarshal(data, &m); err != nil {
			return jsonError(err)
		}
		switch m.Type {
		case "resize":
			select {
			case resize <- runtime.TTYSize{Rows: m.Rows, Cols: m.Cols}:
			case <-time.After(time.Second): // nobody has a terminal
			case <-ended:
				return nil
			}
		case "signal":
			sig, err := signalOf(m.Signal)
			if err != nil {
				return err
			}
			select {
			case signals <- sig:
			case <-ended:
				return nil
			}
		case "stdin_end":
			if !stdinEnded {
				stdinEnded = true
				select {
				case input <- nil: // see feed
				case <-ended:
					return nil
				}
			}
		default:
			return usage(fmt.Sprintf("message type %.40q is not known", m.Type), "it is resize, signal or stdin_end")
		}
	}
}

// text sends a message; a client that has gone is noticed by who reads.
func (x *execConn) text(m execMessageOut) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return x.conn.Write(x.ctx, websocket.MessageText, data)
}

// end sends the last message and says goodbye.
func (x *execConn) end(m execMessageOut) {
	data, err := json.Marshal(m)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), sendWait)
	defer cancel()
	if x.conn.Write(ctx, websocket.MessageText, data) == nil {
		x.conn.Close(websocket.StatusNormalClosure, "")
	}
}

// channel is one of a command's outputs. Writing waits for a slow reader, and
// the command with it.
type channel struct {
	x  *execConn
	id byte
}

func (c channel) Write(p []byte) (int, error) {
	for n := 0; n < len(p); n += channelData {
		if err := c.send(p[n:min(len(p), n+channelData)]); err != nil {
			return n, err
		}
	}
	return len(p), nil
}

// channelData is the most that one message carries: many clients refuse messages
// larger than 32 KiB unless told otherwise.
const channelData = 32<<10 - 1

func (c channel) send(p []byte) error {
	w, err := c.x.conn.Writer(c.x.ctx, websocket.MessageBinary)
	if err != nil {
		return err
	}
	if _, err = w.Write([]byte{c.id}); err == nil {
		_, err = w.Write(p)
	}
	return errors.Join(err, w.Close())
}
