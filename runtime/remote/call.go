package remote

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"time"

	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// sender makes the request of a call with a method of the generated client. with
// is passed on to it.
type sender func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error)

// call makes a call and reads its answer, which read closes. When ctx ends, the
// call is ended by name, and its answer says what came of it.
func call[T any](ctx context.Context, e *Engine, send sender, read func(*http.Response) (T, error)) (T, error) {
	return callThen(ctx, e, send, read, func() {})
}

// callThen is call with what is to be done once the server knows that the call is
// over.
func callThen[T any](ctx context.Context, e *Engine, send sender, read func(*http.Response) (T, error), over func()) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	id := rand.Text()
	hard, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		if e.end(hard, id) != nil {
			kill()
		}
		over()
	})
	defer func() {
		if !stop() {
			kill()
			<-told
		}
	}()
	resp, err := wire.Opened(send(hard, func(_ context.Context, r *http.Request) error {
		r.Header.Set("X-Request-Id", id)
		return nil
	}))
	if err != nil {
		return none, e.failed(ctx, err)
	}
	v, err := read(resp)
	if err != nil {
		return v, e.failed(ctx, err)
	}
	return v, nil
}

// endTime bounds how long the server may take to hear that a call is over.
const endTime = 5 * time.Second

// end ends a call by its name.
func (e *Engine) end(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	return wire.Done(e.api.CancelCall(ctx, id))
}

// ask is a call that is answered with JSON.
func ask[T any](ctx context.Context, e *Engine, send sender) (T, error) {
	return call(ctx, e, send, func(resp *http.Response) (T, error) { return wire.Answer[T](resp, nil) })
}

// tell is a call without a result.
func tell(ctx context.Context, e *Engine, send sender) error {
	_, err := call(ctx, e, send, func(resp *http.Response) (struct{}, error) { return struct{}{}, wire.Done(resp, nil) })
	return err
}

// fetch is a call that is answered with bytes.
func fetch(ctx context.Context, e *Engine, w io.Writer, send sender) error {
	_, err := call(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return send(ctx, trailing(with))
	}, func(resp *http.Response) (int64, error) { return drain(resp, w) })
	return err
}

// trailing asks for the error of an answer that fails on the way.
func trailing(with client.RequestEditorFn) client.RequestEditorFn {
	return func(ctx context.Context, r *http.Request) error {
		r.Header.Set("TE", "trailers")
		return with(ctx, r)
	}
}

// drain copies an answer, and says what it failed with.
func drain(resp *http.Response, w io.Writer) (int64, error) {
	defer resp.Body.Close()
	to := &ours{w: w}
	n, err := io.Copy(to, resp.Body)
	if to.err != nil {
		return n, callers{to.err}
	}
	if err == nil {
		err = wire.TrailerError(resp)
	}
	return n, err
}

// ours is a writer whose errors are told from those of the connection; without w
// it discards.
type ours struct {
	w   io.Writer
	err error
}

func (o *ours) Write(p []byte) (int, error) {
	if o.w == nil {
		return len(p), nil
	}
	n, err := o.w.Write(p)
	if err != nil {
		o.err = err
	}
	return n, err
}

// callers is an error of the caller's own reader, writer or function, which is
// given back as it is.
type callers struct{ error }

func (c callers) Unwrap() error { return c.error }
