package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/guestinit/proto/tartree"
)

// decodeFiles reads the body of a request about files, which is not on the
// way of a fork and may take the time that encoding/json needs.
func decodeFiles(body []byte, v any, path *string) error {
	if err := json.Unmarshal(body, v); err != nil {
		return coded(proto.CodeInvalid, "read request: %w", err)
	}
	if !filepath.IsAbs(*path) || strings.IndexByte(*path, 0) >= 0 {
		return coded(proto.CodeInvalid, "path %q: not absolute", *path)
	}
	return nil
}

// fileError gives an error of tartree its code.
func fileError(err error) error {
	code := errorCode(err)
	switch {
	case errors.Is(err, tartree.ErrConflict):
		code = proto.CodeExists
	case errors.Is(err, unix.ENOTEMPTY): // which is EEXIST too, for package os
		code = proto.CodeInvalid
	case errors.Is(err, unix.EEXIST):
		code = proto.CodeExists
	case errors.Is(err, tartree.ErrUnsafe), errors.Is(err, tartree.ErrArchive):
		code = proto.CodeInvalid
	case code == proto.CodeInternal && errors.As(err, new(unix.Errno)):
		code = proto.CodeInvalid // what the guest's kernel refuses
	}
	return &codedError{code, err}
}

func (c *conn) serveStat(req *request) bool {
	var r proto.StatRequest
	if err := decodeFiles(req.body, &r, &r.Path); err != nil {
		return c.fail(err)
	}
	st, err := statFile(r)
	if err != nil {
		return c.fail(fileError(err))
	}
	return c.okJSON(st)
}

func statFile(r proto.StatRequest) (proto.FileStat, error) {
	var st unix.Stat_t
	var err error
	if r.FollowLink {
		err = unix.Stat(r.Path, &st)
	} else {
		err = unix.Lstat(r.Path, &st)
	}
	if err != nil {
		return proto.FileStat{}, fmt.Errorf("stat %s: %w", r.Path, err)
	}
	f := fileStat(filepath.Base(r.Path), &st)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if f.LinkTarget, err = os.Readlink(r.Path); err != nil {
			return f, fmt.Errorf("stat %s: %w", r.Path, cause(err))
		}
	}
	return f, nil
}

func fileStat(name string, st *unix.Stat_t) proto.FileStat {
	return proto.FileStat{
		Name: name, Size: st.Size, Mode: st.Mode, UID: int(st.Uid), GID: int(st.Gid),
		MTime: time.Unix(st.Mtim.Unix()).UTC(),
	}
}

// servePut unpacks what the client sends. The answer to what went wrong comes
// at once, also in the middle of the stream.
func (c *conn) servePut(req *request) bool {
	var r proto.PutRequest
	if err := decodeFiles(req.body, &r, &r.Path); err != nil {
		return c.fail(err)
	}
	if _, err := c.nc.Write(appendUpgrade(nil, proto.UpgradeTar)); err != nil {
		return false
	}
	fr := proto.NewFrameReader(c.br)
	in := proto.NewDataReader(fr)
	err := tartree.Unpack(in, tartree.UnpackOptions{
		Path: r.Path, Rename: r.Rename, Contents: r.Contents, Parents: r.Parents, Trusted: true,
	})
	return c.endTar(proto.NewFrameWriter(c.nc), fr, err)
}

func (c *conn) serveGet(req *request) bool {
	var r proto.GetRequest
	if err := decodeFiles(req.body, &r, &r.Path); err != nil {
		return c.fail(err)
	}
	if _, err := c.nc.Write(appendUpgrade(nil, proto.UpgradeTar)); err != nil {
		return false
	}
	fw := proto.NewFrameWriter(c.nc)
	out := proto.NewDataWriter(fw)
	out.Zeroes = r.Zeroes
	err := tartree.Pack(out, tartree.PackOptions{Path: r.Path, FollowLink: r.FollowLink})
	if err == nil {
		err = out.Flush()
	}
	return c.endTar(fw, proto.NewFrameReader(c.br), err)
}

// endTar tells the client how a tar stream ended and skips what it still sends.
// A connection that broke shows in the writing.
func (c *conn) endTar(fw *proto.FrameWriter, fr *proto.FrameReader, err error) bool {
	var body []byte
	if err != nil {
		err = fileError(err)
		body = appendError(nil, errorCode(err), err.Error())
	}
	return fw.Send(proto.FrameEnd, body) == nil && awaitDone(fr)
}
