package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// openStream sends a request whose answer is a stream.
func (c *Client) openStream(ctx context.Context, path, token string, req any, dial dialer) (*conn, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("write request to guest agent: %w", err)
	}
	k, resp, err := c.open(ctx, call{method: http.MethodPost, path: path, upgrade: token, body: body}, dial)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		watch(k.nc)
		return k, nil
	}
	if err := c.answer(ctx, k, resp, nil); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("guest agent answered %s to a request for a stream", resp.Status)
}

// closeStream gives the connection back to HTTP after the guest's last frame.
func (c *Client) closeStream(k *conn, g *gate) {
	g.close()
	if err := proto.NewFrameWriter(k.nc).Send(proto.FrameDone, nil); err != nil {
		c.giveUp(k)
		return
	}
	c.release(k)
}

// gate is a writer that can be shut under those who use it: nothing but
// FrameDone may follow the guest's last frame, and a sender may be in a Read
// that nobody can end.
type gate struct {
	w    io.Writer
	mu   sync.Mutex
	shut bool
}

var errShut = errors.New("stream has ended")

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return 0, errShut
	}
	return g.w.Write(p)
}

// close waits for a Write under way and refuses those after it. It reports
// whether it was the first.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.shut
	g.shut = true
	return !was
}

// watch makes the end of a silent stream's other side known within two seconds:
// a guest that was put back to an earlier state resets a connection it does
// not know as soon as a probe reaches it. A guest that is paused answers no
// probe and must keep its streams, so it is not their number that gives up.
func watch(nc net.Conn) {
	t, ok := nc.(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
		SyscallConn() (syscall.RawConn, error)
	})
	if !ok {
		return
	}
	// Best effort: a stream without works until someone pulls the machine away.
	t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 100})
	if rc, err := t.SyscallConn(); err == nil {
		rc.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int((7 * 24 * time.Hour).Milliseconds()))
		})
	}
}

// unwatch ends the probing: an idle connection costs the guest nothing.
func unwatch(nc net.Conn) {
	if t, ok := nc.(interface{ SetKeepAlive(bool) error }); ok {
		t.SetKeepAlive(false)
	}
}
