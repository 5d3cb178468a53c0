package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

var (
	// ErrUnreachable means that nothing answered on the agent's port, or that
	// the connection broke before the answer was complete.
	ErrUnreachable = errors.New("guest agent cannot be reached")
	// ErrNotReady means that the agent answers and the machine is still on its way.
	ErrNotReady = errors.New("guest is not ready")
	// ErrVersion means that the guest runs an agent of another protocol version.
	ErrVersion = errors.New("guest agent speaks another protocol version")
	// ErrOutdated means that the guest runs an agent that does not know yet what
	// it is asked for: its machine was committed by an earlier sietch.
	ErrOutdated = errors.New("guest agent is older than what is asked of it")
	// ErrClosed is returned by calls on a closed client.
	ErrClosed = errors.New("client of the guest agent is closed")
)

// RemoteError is an error that the agent reported.
type RemoteError struct {
	Code    string // one of the proto.Code constants
	Message string
}

func (e *RemoteError) Error() string { return e.Message }

// Is makes errors.Is find the sentinel of a code.
func (e *RemoteError) Is(target error) bool {
	return e.Code == proto.CodeNotReady && target == ErrNotReady || e.Code == proto.CodeVersion && target == ErrVersion
}

// Options of a client.
type Options struct {
	// Dial opens a connection to the agent's port. It is called from several
	// goroutines and has to return soon after its context ends.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Client speaks to the agent of one sandbox.
type Client struct {
	o Options

	mu     sync.Mutex
	closed bool
	idle   []*conn // most recently used last
	active map[*conn]struct{}
	calls  sync.WaitGroup
}

// New returns a client; nothing is dialed before the first call.
func New(o Options) *Client { return &Client{o: o, active: make(map[*conn]struct{})} }

// Close ends calls that are under way with ErrClosed and drops all connections.
// Idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	for k := range c.active {
		k.hangUp()
	}
	c.mu.Unlock()
	c.CloseIdle()
	c.calls.Wait()
	return nil
}

// CloseIdle drops connections that no call is using. It is due before a
// snapshot, which otherwise holds them, and after the machine was replaced.
func (c *Client) CloseIdle() {
	c.mu.Lock()
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	for _, nc := range idle {
		nc.expiry.Stop()
		nc.nc.Close()
	}
}

// enter counts a call; done is to be called at its end.
func (c *Client) enter() (done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	c.calls.Add(1)
	return c.calls.Done, nil
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// broken is the error of a call whose connection failed.
func (c *Client) broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrUnreachable, context.Cause(ctx))
	case c.isClosed():
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
