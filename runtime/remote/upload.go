package remote

import (
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// upload is the body of a call that comes from a reader of the caller's, in which
// it may be stuck when the call is over.
type upload struct {
	r  *io.PipeReader
	w  *io.PipeWriter
	mu sync.Mutex
	// What the caller's reader failed with.
	err error
}

// newUpload takes what fill writes.
func newUpload(fill func(io.Writer) error) *upload {
	u := &upload{}
	u.r, u.w = io.Pipe()
	go func() {
		err := fill(u.w)
		if err != nil && err != io.ErrClosedPipe {
			u.mu.Lock()
			u.err = err
			u.mu.Unlock()
		}
		u.w.CloseWithError(err)
	}()
	return u
}

// over lets a server that waits for more go on: it knows that the call has ended.
func (u *upload) over() { u.w.Close() }

// close lets go of the caller's reader, at its next byte.
func (u *upload) close() { u.r.CloseWithError(io.ErrClosedPipe) }

// failure is what the caller's reader failed with, if it is the reason that the
// call failed.
func (u *upload) failure(err error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil && u.err != nil {
		return u.err
	}
	return err
}

// uploader makes the request of a call with a body.
type uploader func(ctx context.Context, in io.Reader, with client.RequestEditorFn) (*http.Response, error)

// send is tell with a body.
func send(ctx context.Context, e *Engine, in io.Reader, make uploader) error {
	_, err := sendFor(ctx, e, copied(in), make, func(resp *http.Response) (struct{}, error) { return struct{}{}, wire.Done(resp, nil) })
	return err
}

// copied fills an upload from a reader.
func copied(in io.Reader) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	}
}

// sendFor is call with a body.
func sendFor[T any](ctx context.Context, e *Engine, fill func(io.Writer) error, make uploader, read func(*http.Response) (T, error)) (T, error) {
	u := newUpload(fill)
	defer u.close()
	v, err := callThen(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return make(ctx, u.r, with)
	}, read, u.over)
	return v, u.failure(err)
}
