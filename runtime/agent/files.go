package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"unicode/utf8"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// PutRequest and GetRequest say where a tar stream goes or comes from.
type (
	PutRequest = proto.PutRequest
	GetRequest = proto.GetRequest
)

// Stat describes a path of the guest; a link at its end is not followed.
func (c *Client) Stat(ctx context.Context, path string) (proto.FileStat, error) {
	return c.stat(ctx, proto.StatRequest{Path: path})
}

// StatTarget describes what a path of the guest leads to, links followed.
func (c *Client) StatTarget(ctx context.Context, path string) (proto.FileStat, error) {
	return c.stat(ctx, proto.StatRequest{Path: path, FollowLink: true})
}

func (c *Client) stat(ctx context.Context, q proto.StatRequest) (st proto.FileStat, err error) {
	if err := checkPath(q.Path); err != nil {
		return st, err
	}
	return st, c.do(ctx, http.MethodPost, "/v1/files/stat", q, &st)
}

// checkPath refuses what the guest would, and what JSON would change on the way.
func checkPath(p string) error {
	if !path.IsAbs(p) || !utf8.ValidString(p) {
		return &RemoteError{proto.CodeInvalid, fmt.Sprintf("path %q: not absolute, or not UTF-8", p)}
	}
	return nil
}

// Put unpacks a tar stream in the guest; see [PutRequest] for where it goes.
// Owners and modes are kept. Names with "..", and links in the stream that lead
// out of the destination, are refused. After an error, what came before stays.
// When the guest ends the stream early, a Read of tar may still be under way
// when Put returns.
func (c *Client) Put(ctx context.Context, req PutRequest, tar io.Reader) error {
	if err := checkPath(req.Path); err != nil {
		return err
	}
	done, err := c.enter()
	if err != nil {
		return err
	}
	defer done()
	k, err := c.openStream(ctx, "/v1/files/put", proto.UpgradeTar, req, c.o.Dial)
	if err != nil {
		return err
	}
	g := &gate{w: k.nc}
	unread := make(chan error, 1) // why tar could not be read
	go func() {
		src := &noting{r: tar}
		out := proto.NewDataWriter(proto.NewFrameWriter(g))
		out.Zeroes = k.revision >= 1
		if _, err := io.Copy(onlyWriter{out}, src); err == nil {
			out.End()
		}
		if src.err != nil && g.close() {
			// A stream without an end is an error to the guest. Once it has
			// ended the stream itself, the connection may be another call's.
			unread <- src.err
			k.nc.Close()
		}
	}()
	// The guest sends nothing but the end.
	_, err = io.Copy(io.Discard, proto.NewDataReader(proto.NewFrameReader(k.br)))
	var remote *proto.StreamError
	if err == nil || errors.As(err, &remote) {
		c.closeStream(k, g)
		return remoteOf(remote)
	}
	c.giveUp(k)
	g.close()
	select {
	case err := <-unread:
		return fmt.Errorf("read tar stream: %w", err)
	default:
		return c.broken(ctx, err)
	}
}

// Get writes a tar stream of a file or directory of the guest, links in it as
// links. What was written before an error is not a whole archive.
func (c *Client) Get(ctx context.Context, req GetRequest, tar io.Writer) error {
	if err := checkPath(req.Path); err != nil {
		return err
	}
	done, err := c.enter()
	if err != nil {
		return err
	}
	defer done()
	req.Zeroes = true
	k, err := c.openStream(ctx, "/v1/files/get", proto.UpgradeTar, req, c.o.Dial)
	if err != nil {
		return err
	}
	dst := &noting{w: tar}
	_, err = io.Copy(onlyWriter{dst}, proto.NewDataReader(proto.NewFrameReader(k.br)))
	var remote *proto.StreamError
	switch {
	case dst.err != nil:
		c.giveUp(k)
		return fmt.Errorf("write tar stream: %w", dst.err)
	case err == nil || errors.As(err, &remote):
		c.closeStream(k, &gate{})
		return remoteOf(remote)
	}
	c.giveUp(k)
	return c.broken(ctx, err)
}

func remoteOf(e *proto.StreamError) error {
	if e == nil {
		return nil
	}
	return &RemoteError{e.Code, e.Message}
}

// noting remembers the error of the caller's end of a copy.
type noting struct {
	r   io.Reader
	w   io.Writer
	err error
}

func (n *noting) Read(p []byte) (int, error) {
	m, err := n.r.Read(p)
	if err != io.EOF {
		n.err = err
	}
	return m, err
}

func (n *noting) Write(p []byte) (int, error) {
	m, err := n.w.Write(p)
	n.err = err
	return m, err
}

// onlyWriter hides ReadFrom, so that io.Copy uses Write.
type onlyWriter struct{ io.Writer }
