package api

import (
	"context"
	"io"
	"net/http"
)

const (
	octets = "application/octet-stream"
	tarred = "application/x-tar"
)

// late is an answer of bytes that begins with the first of them: what fails
// before is an answer of its own.
type late struct {
	w           http.ResponseWriter
	contentType string
	to          io.Writer
}

func (l *late) Write(p []byte) (int, error) {
	if l.to == nil {
		l.to = begin(l.w, l.contentType)
	}
	return l.to.Write(p)
}

// close ends an answer of bytes. When it failed on the way, the connection is
// broken off: nobody is to take a part for the whole.
func (s *Server) close(w http.ResponseWriter, r *http.Request, out *late, err error) {
	switch {
	case err != nil && out.to == nil:
		s.fail(w, r, err)
	case err != nil:
		if c := callOf(r); c != nil {
			c.err = err
		}
		panic(http.ErrAbortHandler)
	case out.to == nil:
		out.Write(nil)
	}
}

// draining is a context that also ends when the server is about to: for streams
// that would go on for ever.
func (s *Server) draining(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.closing:
			cancel(errShuttingDown)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-ended }
}
