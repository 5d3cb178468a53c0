package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// Streams are what a command is connected to. Nil is nothing.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Started, if set, is called once the command runs.
	Started func()
	// Sizes of the terminal, and signals by name, as they come.
	Sizes   <-chan Size
	Signals <-chan string
}

// Size of a terminal in characters.
type Size struct{ Rows, Cols int }

// Exit is how a command ended, as a shell gives it.
type Exit struct {
	Code, Signal int
	Reason       string // why it could not be run
}

// message is a text message of the exec protocol.
type message struct {
	Type     string     `json:"type"`
	Rows     int        `json:"rows,omitempty"`
	Cols     int        `json:"cols,omitempty"`
	Signal   any        `json:"signal,omitempty"`
	ExitCode int        `json:"exit_code,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Error    *ErrorBody `json:"error,omitempty"`
}

// Stream runs a command in a sandbox and waits for its end. Output is read as
// fast as it can be written. When ctx ends, so do the command and all it started.
//
// Stdin is read in a goroutine that may be in a Read when Stream returns; what
// that yields is lost.
func (c *Client) Stream(ctx context.Context, sandbox string, r ExecStart, s Streams) (Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.Stdin = s.Stdin != nil
	conn, err := c.dialExec(ctx, sandbox)
	if err != nil {
		return Exit{}, err
	}
	defer conn.CloseNow()
	conn.SetReadLimit(-1)
	if err := send(ctx, conn, r); err != nil {
		return Exit{}, fmt.Errorf("ask for the command: %w", err)
	}
	if s.Stdin != nil {
		go feed(ctx, conn, s.Stdin) // see Stream
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { control(ctx, conn, s) })
	return receive(ctx, conn, s)
}

// dialExec opens the WebSocket as the client's other requests go.
func (c *Client) dialExec(ctx context.Context, sandbox string) (*websocket.Conn, error) {
	r, err := NewExecStreamRequest(c.Server, sandbox)
	if err != nil {
		return nil, err
	}
	r = r.WithContext(ctx)
	if err := c.applyEditors(ctx, r, nil); err != nil {
		return nil, err
	}
	h, ok := c.Client.(*http.Client)
	if !ok {
		h = http.DefaultClient
	}
	conn, a, err := websocket.Dial(ctx, r.URL.String(), &websocket.DialOptions{HTTPClient: h, HTTPHeader: r.Header, Subprotocols: []string{"sietch.exec.v1"}})
	if err != nil {
		if a != nil && a.StatusCode >= 400 {
			return nil, failure(a)
		}
		return nil, fmt.Errorf("reach the server: %w", err)
	}
	return conn, nil
}

func send(ctx context.Context, conn *websocket.Conn, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, data)
}

func feed(ctx context.Context, conn *websocket.Conn, in io.Reader) {
	buf := make([]byte, 1+32<<10) // channel 0
	for {
		n, err := in.Read(buf[1:])
		if n > 0 && conn.Write(ctx, websocket.MessageBinary, buf[:1+n]) != nil {
			return
		}
		if err != nil {
			send(ctx, conn, message{Type: "stdin_end"})
			return
		}
	}
}

func control(ctx context.Context, conn *websocket.Conn, s Streams) {
	for {
		var m message
		select {
		case <-ctx.Done():
			return
		case size, ok := <-s.Sizes:
			if !ok {
				s.Sizes = nil
				continue
			}
			m = message{Type: "resize", Rows: size.Rows, Cols: size.Cols}
		case sig, ok := <-s.Signals:
			if !ok {
				s.Signals = nil
				continue
			}
			m = message{Type: "signal", Signal: sig}
		}
		if send(ctx, conn, m) != nil {
			return
		}
	}
}

func receive(ctx context.Context, conn *websocket.Conn, s Streams) (Exit, error) {
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return Exit{}, errors.Join(context.Cause(ctx), fmt.Errorf("the connection to the server broke: %w", err))
		}
		if kind == websocket.MessageBinary {
			if err := s.write(data); err != nil {
				return Exit{}, err
			}
			continue
		}
		var m message
		if err := json.Unmarshal(data, &m); err != nil {
			return Exit{}, fmt.Errorf("read message of the server: %w", err)
		}
		switch {
		case m.Type == "started" && s.Started != nil:
			s.Started()
		case m.Type == "exit":
			n, _ := m.Signal.(float64)
			return Exit{Code: m.ExitCode, Signal: int(n), Reason: m.Reason}, nil
		case m.Type == "error" && m.Error != nil:
			return Exit{}, &RemoteError{0, *m.Error}
		}
	}
}

func (s Streams) write(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	to := s.Stdout
	if data[0] == 2 {
		to = s.Stderr
	}
	if to == nil {
		return nil
	}
	_, err := to.Write(data[1:])
	return err
}
