package sietch

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"iter"

	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// Requests and answers, as the API's document has them.
type (
	PathStat  = client.PathStat
	FileEvent = client.FileEvent
)

const (
	octets = "application/octet-stream"
	tarred = "application/x-tar"
)

// ReadFile reads a regular file; links are followed.
func (s *Sandbox) ReadFile(ctx context.Context, path string) ([]byte, error) {
	return wire.All(s.c.api.ReadFile(ctx, s.Name, &client.ReadFileParams{Path: path}))
}

// OpenFile is ReadFile as a stream; the caller closes.
func (s *Sandbox) OpenFile(ctx context.Context, path string) (io.ReadCloser, error) {
	return wire.Body(s.c.api.ReadFile(ctx, s.Name, &client.ReadFileParams{Path: path}))
}

// WriteFile writes a regular file: whole, or not at all. The directories above
// it must be there.
func (s *Sandbox) WriteFile(ctx context.Context, path string, content io.Reader, mode fs.FileMode) error {
	return wire.Done(s.c.api.WriteFileWithBody(ctx, s.Name, &client.WriteFileParams{Path: path, Mode: octal(mode)}, octets, content))
}

// ListDir lists a directory, by name.
func (s *Sandbox) ListDir(ctx context.Context, path string) ([]PathStat, error) {
	return wire.Answer[[]PathStat](s.c.api.ListDir(ctx, s.Name, &client.ListDirParams{Path: path}))
}

// StatPath describes a path; a link at its end is not followed.
func (s *Sandbox) StatPath(ctx context.Context, path string) (PathStat, error) {
	return wire.Answer[PathStat](s.c.api.StatPath(ctx, s.Name, &client.StatPathParams{Path: path}))
}

// MakeDir makes a directory; parents: and those above it, and it may be there.
func (s *Sandbox) MakeDir(ctx context.Context, path string, mode fs.FileMode, parents bool) error {
	return wire.Done(s.c.api.MakeDir(ctx, s.Name, nil, client.MakeDirRequest{Path: path, Mode: octal(mode), Parents: parents}))
}

// RemovePath removes a file or an empty directory; recursive: and all beneath it.
func (s *Sandbox) RemovePath(ctx context.Context, path string, recursive bool) error {
	return wire.Done(s.c.api.RemovePath(ctx, s.Name, &client.RemovePathParams{Path: path, Recursive: recursive}))
}

// ReadTar reads a file or directory as a tar, beneath its base name; the caller
// closes. What a guest sends is not to be trusted when it is unpacked.
func (s *Sandbox) ReadTar(ctx context.Context, path string) (io.ReadCloser, error) {
	return wire.Body(s.c.api.ReadTar(ctx, s.Name, &client.ReadTarParams{Path: path}))
}

// WriteTar writes the members of a tar beneath a directory, which exists.
func (s *Sandbox) WriteTar(ctx context.Context, dir string, tar io.Reader) error {
	return wire.Done(s.c.api.WriteTarWithBody(ctx, s.Name, &client.WriteTarParams{Path: dir}, tarred, tar))
}

// Watch gives the changes of a file or directory, from when it returns until ctx
// ends; recursive: and of all beneath it.
func (s *Sandbox) Watch(ctx context.Context, path string, recursive bool) (iter.Seq2[FileEvent, error], error) {
	r, err := wire.Body(s.c.api.WatchPath(ctx, s.Name, &client.WatchPathParams{Path: path, Recursive: recursive}))
	if err != nil {
		return nil, err
	}
	return wire.Messages[FileEvent](r, "change"), nil
}

func octal(mode fs.FileMode) string { return fmt.Sprintf("%03o", mode.Perm()) }
