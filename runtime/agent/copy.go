package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"

	"github.com/sietch-dev/sietch/guestinit/proto/tartree"
)

// CopyOptions are the options of CopyIn and CopyOut.
type CopyOptions struct {
	// FollowLink copies what a link at the end of the source leads to.
	FollowLink bool
}

// CopyIn copies host path src to guest path dst by the rules of docker cp:
// a file becomes dst or goes into it where it is a directory; a directory
// likewise, and with "/." at its end it is its children that go into dst. The
// parent of dst has to exist. Numeric owner, mode and times are kept.
func (c *Client) CopyIn(ctx context.Context, src, dst string, o CopyOptions) error {
	src, contents := source(src)
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		out := bufio.NewWriterSize(pw, 64<<10)
		err := tartree.Pack(out, tartree.PackOptions{Path: src, FollowLink: o.FollowLink})
		if err == nil {
			err = out.Flush()
		}
		pw.CloseWithError(err)
		packed <- err
	}()
	err := c.Put(ctx, PutRequest{Path: dst, Rename: true, Contents: contents}, pr)
	pr.CloseWithError(err)
	return first(<-packed, err)
}

// CopyOut copies guest path src to host path dst by the rules of CopyIn. What
// comes from a guest gets no device nodes, setuid and setgid bits on the host.
func (c *Client) CopyOut(ctx context.Context, src, dst string, o CopyOptions) error {
	_, contents := source(src)
	pr, pw := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := tartree.Unpack(pr, tartree.UnpackOptions{Path: dst, Rename: true, Contents: contents})
		pr.CloseWithError(err)
		unpacked <- err
	}()
	err := c.Get(ctx, GetRequest{Path: src, FollowLink: o.FollowLink}, pw)
	pw.CloseWithError(err)
	return first(<-unpacked, err)
}

// first is the error of a transfer that has failed: the local end's, unless
// that is only what it heard of the other.
func first(local, other error) error {
	if local != nil && !errors.Is(local, other) {
		return local
	}
	return other
}

// source makes a source path absolute, so that "." has a name, and tells
// whether it stands for the directory's contents.
func source(p string) (abs string, contents bool) {
	contents = p == "." || strings.HasSuffix(p, "/.")
	slash := contents || strings.HasSuffix(p, "/")
	if a, err := filepath.Abs(p); err == nil {
		p = a
	}
	if slash && p != "/" {
		p += "/"
	}
	return p, contents
}
