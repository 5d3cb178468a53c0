package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"sync"

	"github.com/coder/websocket"
)

// dialProtocol is the WebSocket subprotocol of dialPort; see openapi.yaml.
const dialProtocol = "sietch.tcp.v1"

// Conn is a connection to a TCP port in a sandbox.
type Conn struct {
	ctx    context.Context
	cancel context.CancelFunc
	conn   *websocket.Conn
	rest   []byte // read and not yet given
	ended  bool   // the other side has said all
	once   sync.Once
}

// DialPort connects to a TCP port of a sandbox. ctx bounds the dialling alone.
func DialPort(ctx context.Context, s Server, name string, port uint16) (*Conn, error) {
	ws, err := s.dial(ctx, fmt.Sprintf("/v1/sandboxes/%s/dial/%d", url.PathEscape(name), port), dialProtocol, name)
	if err != nil {
		return nil, err
	}
	c := &Conn{conn: ws}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

func (c *Conn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.ended {
			return 0, io.EOF
		}
		kind, data, err := c.conn.Read(c.ctx)
		switch {
		case err != nil:
			return 0, fmt.Errorf("read from port: %w", err)
		case kind == websocket.MessageBinary:
			c.rest = data
			continue
		}
		var m struct{ Type string }
		if json.Unmarshal(data, &m) != nil || m.Type != "end" {
			return 0, fmt.Errorf("read from port: %w", ErrProtocol)
		}
		c.ended = true
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *Conn) Write(p []byte) (int, error) {
	written := 0
	for len(p) > written {
		piece := p[written:min(len(p), written+stdinPiece)]
		if err := c.conn.Write(c.ctx, websocket.MessageBinary, piece); err != nil {
			return written, fmt.Errorf("write to port: %w", err)
		}
		written += len(piece)
	}
	return written, nil
}

// CloseWrite says that nothing more will be written.
func (c *Conn) CloseWrite() error {
	return c.conn.Write(c.ctx, websocket.MessageText, []byte(`{"type":"end"}`))
}

// Close breaks the connection. Idempotent.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.cancel()
		c.conn.CloseNow()
	})
	return nil
}
