package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

const (
	idleLimit   = 4
	idleTimeout = 30 * time.Second
	answerLimit = 1 << 20 // bytes of a JSON answer
)

// conn is one connection to the agent, used by one call at a time.
type conn struct {
	nc     net.Conn
	br     *bufio.Reader
	reused bool
	// revision of the agent, from its last answer.
	revision int
	expiry   *time.Timer // while idle
	stop     func() bool // ends the watch on the call's context
}

// acquire returns an idle connection or dials one.
func (c *Client) acquire(ctx context.Context, dial dialer) (*conn, error) {
	for {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			break
		}
		k := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if k.expiry.Stop() && alive(k.nc) {
			k.reused = true
			return k, c.use(ctx, k)
		}
		k.nc.Close()
	}
	nc, err := dial(ctx)
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	k := newConn(nc)
	return k, c.use(ctx, k)
}

// dialer is Options.Dial or made by dialOn.
type dialer func(context.Context) (net.Conn, error)

func newConn(nc net.Conn) *conn { return &conn{nc: nc, br: bufio.NewReaderSize(nc, 4<<10)} }

// use makes k the connection of a call, to be closed when ctx or the client ends.
func (c *Client) use(ctx context.Context, k *conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		k.nc.Close()
		return ErrClosed
	}
	c.active[k] = struct{}{}
	k.stop = context.AfterFunc(ctx, k.hangUp)
	return nil
}

// giveUp closes a connection that can carry no other call.
func (c *Client) giveUp(k *conn) {
	k.stop()
	c.mu.Lock()
	delete(c.active, k)
	c.mu.Unlock()
	k.hangUp()
}

// hangUp closes a connection that something may still be coming on. Closing
// alone would then reset it, which to the guest looks as if it had been restored
// somewhere else; after an end in order it knows that the client is gone.
func (k *conn) hangUp() {
	if t, ok := k.nc.(interface{ CloseWrite() error }); ok {
		t.CloseWrite()
	}
	k.nc.Close()
}

// release keeps a connection for the next call.
func (c *Client) release(k *conn) {
	if !k.stop() || k.br.Buffered() > 0 { // closed by ctx, or the guest talks out of turn
		c.giveUp(k)
		return
	}
	unwatch(k.nc)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.active, k)
	if c.closed || len(c.idle) >= idleLimit {
		k.nc.Close()
		return
	}
	k.expiry = time.AfterFunc(idleTimeout, func() {
		c.mu.Lock()
		for i, other := range c.idle {
			if other == k {
				c.idle = append(c.idle[:i], c.idle[i+1:]...)
				break
			}
		}
		c.mu.Unlock()
		k.nc.Close()
	})
	c.idle = append(c.idle, k)
}

// alive reports whether an idle connection still stands: after a checkout the
// guest resets those it had.
func alive(nc net.Conn) bool {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = rc.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		quiet = errors.Is(err, unix.EAGAIN)
		return true
	})
	return err == nil && quiet
}

// call is one HTTP request.
type call struct {
	method, path string
	upgrade      string // token of the stream that follows, if any
	body         []byte
}

// open sends a request on a connection from acquire and returns it with the
// answer. Where a connection that was idle turns out to be dead, a new one is
// tried: the guest drops connections only between requests.
func (c *Client) open(ctx context.Context, q call, dial dialer) (*conn, *http.Response, error) {
	for {
		k, err := c.acquire(ctx, dial)
		if err != nil {
			return nil, nil, err
		}
		resp, err := k.send(q)
		if err == nil {
			return k, resp, nil
		}
		c.giveUp(k)
		if !k.reused || ctx.Err() != nil || !gone(err) {
			if !errors.Is(err, ErrVersion) && !errors.Is(err, ErrOutdated) {
				err = c.broken(ctx, err)
			}
			return nil, nil, err
		}
	}
}

// gone reports whether a connection ended before a byte of the answer.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// send writes a request and reads the head of the answer.
func (k *conn) send(q call) (*http.Response, error) {
	b := make([]byte, 0, 256+len(q.body))
	b = append(b, q.method+" "+q.path+" HTTP/1.1\r\nHost: agent\r\n"+proto.VersionHeader+": "...)
	b = strconv.AppendInt(b, proto.Version, 10)
	if q.upgrade != "" {
		b = append(b, "\r\nConnection: Upgrade\r\nUpgrade: "+q.upgrade...)
	}
	if q.body != nil {
		b = append(b, "\r\nContent-Type: application/json\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(q.body)), 10)
	}
	b = append(b, "\r\n\r\n"...)
	b = append(b, q.body...)
	if _, err := k.nc.Write(b); err != nil {
		return nil, err
	}
	if _, err := k.br.Peek(1); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(k.br, &http.Request{Method: q.method})
	if err != nil {
		return nil, eofInside(err)
	}
	if v := resp.Header.Get(proto.VersionHeader); v != strconv.Itoa(proto.Version) {
		if v == "" {
			return nil, fmt.Errorf("%w: what answers on its port is not an agent", ErrVersion)
		}
		return nil, fmt.Errorf("%w: %s, this sietch speaks %d", ErrVersion, v, proto.Version)
	}
	// Those before the first revision do not name theirs.
	k.revision, _ = strconv.Atoi(resp.Header.Get(proto.RevisionHeader))
	if k.revision < proto.RouteRevision(q.path) {
		return nil, ErrOutdated
	}
	return resp, nil
}

// answer reads the body of a plain answer into v and keeps the connection.
func (c *Client) answer(ctx context.Context, k *conn, resp *http.Response, v any) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit+1))
	if err == nil && len(body) > answerLimit {
		err = fmt.Errorf("answer is larger than %d bytes", answerLimit)
	}
	if err != nil {
		c.giveUp(k)
		return c.broken(ctx, err)
	}
	if resp.Close {
		c.giveUp(k)
	} else {
		c.release(k)
	}
	if resp.StatusCode != http.StatusOK {
		e := proto.ErrorBody{}
		if json.Unmarshal(body, &e) != nil || e.Message == "" {
			e = proto.ErrorBody{Code: proto.CodeInternal, Message: "guest agent answered " + resp.Status}
		}
		return &RemoteError{e.Code, e.Message}
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("read answer of guest agent: %w", err)
	}
	return nil
}

// do is a request with a plain answer.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	done, err := c.enter()
	if err != nil {
		return err
	}
	defer done()
	q := call{method: method, path: path}
	if in != nil {
		if q.body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("write request to guest agent: %w", err)
		}
	}
	k, resp, err := c.open(ctx, q, c.o.Dial)
	if err != nil {
		return err
	}
	return c.answer(ctx, k, resp, out)
}

func eofInside(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
