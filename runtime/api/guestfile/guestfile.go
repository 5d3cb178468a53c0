// Package guestfile reads and writes single regular files of a guest.
//
// It owns the one-member archives that the engine's CopyIn and CopyOut want for
// that; directories and everything else are theirs. Memory does not grow with a
// file's size. Everything is safe for concurrent use; there is no state, and the
// goroutine of a call ends before it returns.
package guestfile

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// Read copies one regular file of a guest to what open returns for its size. It
// is opened for an empty file too, and written to.
func Read(ctx context.Context, engine runtime.Sandboxes, name, file string, open func(size int64) io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := engine.CopyOut(ctx, runtime.CopyOutRequest{Name: name, Path: file, FollowLink: true}, out)
		out.CloseWithError(err)
		ended <- err
	}()
	err := func() error {
		archive := tar.NewReader(in)
		h, err := archive.Next()
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			return usage(fmt.Sprintf("%s in %s is no regular file", file, name), "sietch cp reads directories too")
		}
		to := open(h.Size)
		if h.Size == 0 {
			_, err := to.Write(nil)
			return err
		}
		_, err = io.Copy(to, archive)
		return err
	}()
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	cancel()
	in.Close()
	if cause := <-ended; cause != nil && (errors.Is(err, cause) || errors.Is(err, io.EOF)) {
		return cause // and not what the reader of the tar made of it
	}
	return err
}

// File is a regular file to be written in a guest.
type File struct {
	Path      string // absolute
	Mode      int64  // permissions
	UID, GID  int
	SizeBytes int64
	Parents   bool // make the directories above it
}

// Write makes a file of what body yields, which must be as long as was said. The
// agent gives a file its name when it is complete.
func Write(ctx context.Context, engine runtime.Engine, name string, f File, body io.Reader) error {
	clean := path.Clean(f.Path)
	if !strings.HasPrefix(f.Path, "/") || clean == "/" || strings.HasSuffix(f.Path, "/") || strings.ContainsRune(f.Path, 0) {
		return usage(fmt.Sprintf("guest path %.200q is not that of a file", f.Path), "give an absolute path")
	}
	dir, base := path.Dir(clean), path.Base(clean)
	if f.Parents {
		if err := engine.MakeDir(ctx, name, dir, 0o755, true); err != nil {
			return err
		}
	}
	in, out := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		archive := tar.NewWriter(out)
		err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: base, Mode: f.Mode, Uid: f.UID, Gid: f.GID, Size: f.SizeBytes, ModTime: time.Now(), Format: tar.FormatPAX})
		if err == nil {
			_, err = io.Copy(archive, body)
		}
		if err == nil {
			err = archive.Close()
		}
		out.CloseWithError(err)
	}()
	err := engine.CopyIn(ctx, runtime.CopyInRequest{Name: name, Path: dir}, in)
	in.Close()
	<-ended
	return err
}

func usage(message, hint string) error {
	return &runtime.Error{Kind: runtime.ErrUsage, Message: message, Hint: hint}
}
