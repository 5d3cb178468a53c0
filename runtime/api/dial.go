package api

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

// dialProtocol is the WebSocket subprotocol of dialPort.
const dialProtocol = "sietch.tcp.v1"

// dialPiece is the most that one message carries, as of an exec.
const dialPiece = 32 << 10

// endMessage says that nothing more will come.
var endMessage = []byte(`{"type":"end"}`)

// DialPort is GET /v1/sandboxes/{name}/dial/{port}, a WebSocket.
func (s *Server) DialPort(w http.ResponseWriter, r *http.Request, name SandboxName, port int) {
	if !s.isWebSocket(w, r, "HTTP passes at /v1/sandboxes/NAME/proxy/PORT/") {
		return
	}
	if port < 1 || port > 65535 {
		s.fail(w, r, usage(fmt.Sprintf("port %d is not between 1 and 65535", port), ""))
		return
	}
	there, err := s.as(r).DialPort(r.Context(), name, uint16(port))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer there.Close()
	here, end := s.accept(w, r, dialProtocol, "dial")
	if here == nil {
		return
	}
	defer end()
	if err := join(context.WithoutCancel(r.Context()), here, there); err != nil {
		callOf(r).err = err
		return
	}
	here.Close(websocket.StatusNormalClosure, "")
}

// join copies both ways until both sides have ended, or one breaks.
func join(ctx context.Context, here *websocket.Conn, there io.ReadWriteCloser) error {
	broken := sync.OnceFunc(func() { here.CloseNow(); there.Close() })
	var wg sync.WaitGroup
	var up, down error
	wg.Go(func() {
		if up = inward(ctx, here, there); up != nil {
			broken()
		}
	})
	wg.Go(func() {
		if down = outward(ctx, there, here); down != nil {
			broken()
		}
	})
	wg.Wait()
	return errors.Join(up, down)
}

func inward(ctx context.Context, from *websocket.Conn, to io.ReadWriteCloser) error {
	for {
		kind, data, err := from.Read(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			if _, err := to.Write(data); err != nil {
				return err
			}
			continue
		}
		var m struct{ Type string }
		if json.Unmarshal(data, &m) != nil || m.Type != "end" {
			return usage("a text message is not {\"type\":\"end\"}", "")
		}
		if c, ok := to.(interface{ CloseWrite() error }); ok {
			return c.CloseWrite()
		}
		return nil
	}
}

func outward(ctx context.Context, from io.Reader, to *websocket.Conn) error {
	buf := make([]byte, dialPiece)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if err := to.Write(ctx, websocket.MessageBinary, buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return to.Write(ctx, websocket.MessageText, endMessage)
		case err != nil:
			return err
		}
	}
}
