// Package agent is the host side of the guest agent.
package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

var (
	// ErrUnreachable means that nothing answered on the agent's port, or that
	// the connection broke.
	ErrUnreachable = errors.New("guest agent cannot be reached")
	// ErrNotReady means that the agent answers and the machine is still on its way.
	ErrNotReady = errors.New("guest is not ready")
	// ErrVersion means that the guest runs an agent of another protocol version.
	ErrVersion = errors.New("guest agent speaks another protocol version")
)

// RemoteError is an error reported by the agent itself.
type RemoteError struct {
	Code    string // not_found, invalid, not_ready, exists, no_space, internal
	Message string
}

func (e *RemoteError) Error() string { return e.Message }

// Options of a client.
type Options struct {
	// Dial opens one connection to the agent's port.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Client speaks to the agent of one sandbox; safe for concurrent use.
type Client struct{ o Options }

// New returns a client; nothing is dialed before the first call.
func New(o Options) *Client { return &Client{o: o} }

// Close drops idle connections and ends what is under way. Idempotent.
func (c *Client) Close() error { return nil }

var errTODO = errors.New("under construction")

// Status asks once.
func (c *Client) Status(ctx context.Context) (proto.Status, error) { return proto.Status{}, errTODO }

// WaitReady asks every poll (0: 2 ms) until the guest is ready, says why it never will be,
// or ctx ends.
func (c *Client) WaitReady(ctx context.Context, poll time.Duration) (proto.Status, error) {
	return proto.Status{}, errTODO
}

// Identify gives this copy of the machine its identity.
func (c *Client) Identify(ctx context.Context, id proto.Identity) error { return errTODO }

// Shutdown asks for a polite power-off and does not wait for it.
func (c *Client) Shutdown(ctx context.Context) error { return errTODO }

// Size of a terminal.
type Size struct{ Rows, Cols uint16 }

// IO is what an exec is connected to. Nil fields are nothing: no stdin, output
// discarded. Exec does not close the channels and stops receiving when it returns.
type IO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
	Signals        <-chan syscall.Signal
}

// Exec runs a process and returns its end. An error means that the end is not
// known; a process that ran and failed is an ExitStatus.
func (c *Client) Exec(ctx context.Context, req proto.ExecRequest, io IO) (proto.ExitStatus, error) {
	return proto.ExitStatus{}, errTODO
}

// PutRequest says where a tar stream goes.
type PutRequest struct {
	// Path in the guest, absolute.
	Path string
	// Rename true is `cp SRC DST` with one source: all entries are below one
	// top entry, which becomes Path itself, or goes into Path where that is an
	// existing directory. False extracts the entries into Path, an existing directory.
	Rename bool
	// Contents (with Rename) is `cp SRC/. DST`: into an existing directory
	// go the children of the top entry, not the entry.
	Contents bool
}

// Put extracts a tar stream in the guest.
func (c *Client) Put(ctx context.Context, req PutRequest, tar io.Reader) error { return errTODO }

// GetRequest says what to read.
type GetRequest struct {
	Path       string // absolute; a trailing "/" follows a link
	FollowLink bool   // a link at the end of Path is followed
}

// Get writes a tar stream of a file or directory; its top entry has the base
// name of Path.
func (c *Client) Get(ctx context.Context, req GetRequest, tar io.Writer) error { return errTODO }

// CopyOptions of CopyIn and CopyOut.
type CopyOptions struct{ FollowLink bool }

// CopyIn copies host path src to guest path dst with the rules of docker cp.
func (c *Client) CopyIn(ctx context.Context, src, dst string, o CopyOptions) error { return errTODO }

// CopyOut copies guest path src to host path dst with the rules of docker cp.
func (c *Client) CopyOut(ctx context.Context, src, dst string, o CopyOptions) error { return errTODO }

// Stat describes a path of the guest; a final link is not followed.
func (c *Client) Stat(ctx context.Context, path string) (proto.FileStat, error) {
	return proto.FileStat{}, errTODO
}
