package api

import (
	"context"
	"encoding/json"
	"errors"
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

// errorTrailer is the error of an answer of bytes that had begun.
const errorTrailer = "Sietch-Error"

// close ends an answer of bytes. When it failed on the way, the connection is
// broken off: nobody is to take a part for the whole. Who reads trailers is told
// the reason in one.
func (s *Server) close(w http.ResponseWriter, r *http.Request, out *late, err error) {
	switch {
	case err != nil && out.to == nil:
		s.fail(w, r, err)
	case err != nil:
		if c := callOf(r); c != nil {
			c.err = err
		}
		// Without a length there are trailers.
		if r.Header.Get("TE") == "trailers" && w.Header().Get("Content-Length") == "" {
			if said, err := json.Marshal(failLine(err)); err == nil {
				w.Header().Set(http.TrailerPrefix+errorTrailer, string(said))
				return
			}
		}
		panic(http.ErrAbortHandler)
	case out.to == nil:
		out.Write(nil)
	}
}

// ended is what became of a stream that goes on for ever: one that the server
// ended, to end itself, is no end of what was followed.
func ended(ctx context.Context, err error) error {
	if gone := context.Cause(ctx); err == nil && errors.Is(gone, errShuttingDown) {
		return gone
	}
	return err
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
			cancel(refusal(errShuttingDown, "the server is shutting down", "try again in a moment"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-ended }
}
