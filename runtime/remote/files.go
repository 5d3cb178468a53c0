package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

const tarred = "application/x-tar"

// CopyIn writes a tar stream beneath a directory of the guest.
func (e *Engine) CopyIn(ctx context.Context, r runtime.CopyInRequest, tar io.Reader) error {
	if err := sandbox(r.Name); err != nil {
		return err
	}
	return send(ctx, e, tar, func(ctx context.Context, in io.Reader, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.WriteTarWithBody(ctx, r.Name, &client.WriteTarParams{Path: r.Path}, tarred, in, with)
	})
}

// CopyOut reads a file or directory of the guest as a tar stream.
func (e *Engine) CopyOut(ctx context.Context, r runtime.CopyOutRequest, tar io.Writer) error {
	if err := sandbox(r.Name); err != nil {
		return err
	}
	return fetch(ctx, e, tar, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ReadTar(ctx, r.Name, &client.ReadTarParams{Path: r.Path, FollowLink: r.FollowLink}, with)
	})
}

// StatPath describes a path of the guest.
func (e *Engine) StatPath(ctx context.Context, name, path string) (runtime.PathStat, error) {
	return about[runtime.PathStat](ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.StatPath(ctx, name, &client.StatPathParams{Path: path}, with)
	})
}

// ListDir lists a directory of the guest.
func (e *Engine) ListDir(ctx context.Context, name, path string) ([]runtime.PathStat, error) {
	return about[[]runtime.PathStat](ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ListDir(ctx, name, &client.ListDirParams{Path: path}, with)
	})
}

// MakeDir makes a directory in the guest.
func (e *Engine) MakeDir(ctx context.Context, name, path string, mode uint32, parents bool) error {
	return to(ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.MakeDir(ctx, name, nil, client.MakeDirRequest{Path: path, Mode: fmt.Sprintf("%03o", mode), Parents: parents}, with)
	})
}

// RemovePath removes a path of the guest.
func (e *Engine) RemovePath(ctx context.Context, name, path string, recursive bool) error {
	return to(ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.RemovePath(ctx, name, &client.RemovePathParams{Path: path, Recursive: recursive}, with)
	})
}

// WatchPath tells changes of a path of the guest; it returns nil when ctx ends.
func (e *Engine) WatchPath(ctx context.Context, r runtime.WatchRequest, each func(runtime.FileEvent) error) error {
	if err := sandbox(r.Name); err != nil {
		return err
	}
	return follow(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.WatchPath(ctx, r.Name, &client.WatchPathParams{Path: r.Path, Recursive: r.Recursive}, with)
	}, "change", r.Started, each)
}

// follow is a call that is answered with server-sent events. The end of ctx is
// its end, and no error.
func follow[T any](ctx context.Context, e *Engine, send sender, only string, started func(), each func(T) error) error {
	var enough error
	_, err := call(ctx, e, send, func(resp *http.Response) (struct{}, error) {
		if started != nil {
			started()
		}
		for v, err := range wire.Messages[T](resp.Body, only) {
			if err != nil {
				return struct{}{}, err
			}
			if enough = each(v); enough != nil {
				return struct{}{}, enough
			}
		}
		return struct{}{}, nil
	})
	switch {
	case enough != nil:
		return enough
	case ctx.Err() != nil:
		return nil
	}
	return err
}
