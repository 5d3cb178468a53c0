package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// serveList lists a directory.
func (c *conn) serveList(req *request) bool {
	var r proto.ListRequest
	if err := decodeFiles(req.body, &r, &r.Path); err != nil {
		return c.fail(err)
	}
	fd, err := unix.Open(r.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return c.fail(fileError(fmt.Errorf("list %s: %w", r.Path, err)))
	}
	dir := os.NewFile(uintptr(fd), r.Path)
	defer dir.Close()
	return c.serveRecords(func(_ context.Context, fw *proto.FrameWriter) error {
		for {
			names, err := dir.Readdirnames(256)
			for _, name := range names {
				f, err := statIn(fd, name)
				if errors.Is(err, unix.ENOENT) {
					continue // gone since its name was read
				}
				if err != nil {
					return fileError(fmt.Errorf("list %s: %s: %w", r.Path, name, err))
				}
				if err := sendRecord(fw, f); err != nil {
					return err
				}
			}
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return fileError(fmt.Errorf("list %s: %w", r.Path, cause(err)))
			}
		}
	})
}

// statIn describes an entry of a directory.
func statIn(dir int, name string) (proto.FileStat, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return proto.FileStat{}, err
	}
	f := fileStat(name, &st)
	if !utf8.ValidString(name) {
		f.RawName = []byte(name)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		var target [unix.PathMax]byte
		n, err := unix.Readlinkat(dir, name, target[:])
		if err != nil {
			return f, err
		}
		f.LinkTarget = string(target[:n])
		if !utf8.Valid(target[:n]) {
			f.RawTarget = target[:n:n]
		}
	}
	return f, nil
}

func (c *conn) serveMakeDir(req *request) bool {
	var r proto.MakeDirRequest
	err := decodeFiles(req.body, &r, &r.Path)
	if err == nil && r.Mode&^0o7777 != 0 {
		err = coded(proto.CodeInvalid, "mode %#o: more than permissions", r.Mode)
	}
	if err == nil {
		err = makeDir(r)
	}
	if err != nil {
		return c.fail(err)
	}
	return c.ok([]byte("{}"))
}

func makeDir(r proto.MakeDirRequest) error {
	path := filepath.Clean(r.Path)
	if r.Parents {
		if fi, err := os.Stat(path); err == nil && fi.IsDir() {
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fileError(fmt.Errorf("make %s: %w", r.Path, cause(err)))
		}
	}
	err := unix.Mkdir(path, r.Mode)
	if err == nil {
		err = unix.Chmod(path, r.Mode)
	}
	if err != nil {
		return fileError(fmt.Errorf("make %s: %w", r.Path, err))
	}
	return nil
}

func (c *conn) serveRemove(req *request) bool {
	var r proto.RemoveRequest
	err := decodeFiles(req.body, &r, &r.Path)
	if err == nil {
		err = removePath(r)
	}
	if err != nil {
		return c.fail(err)
	}
	return c.ok([]byte("{}"))
}

func removePath(r proto.RemoveRequest) error {
	path := filepath.Clean(r.Path)
	if path == "/" {
		return coded(proto.CodeInvalid, "remove /: this is the root")
	}
	_, err := os.Lstat(path)
	switch {
	case err != nil:
	case r.Recursive:
		err = os.RemoveAll(path)
	default:
		err = os.Remove(path)
	}
	if err != nil {
		return fileError(fmt.Errorf("remove %s: %w", r.Path, cause(err)))
	}
	return nil
}
