package mcp

import (
	"context"
	"errors"
	"io"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
)

// ServeStdio speaks the protocol with one client, a message a line, until in
// ends or ctx does. Calls that are under way then end too. Nothing but messages
// is written to out; neither stream is closed.
func ServeStdio(ctx context.Context, engine runtime.Engine, o Options, in io.Reader, out io.Writer) error {
	limit := o.MaxRequestBytes
	if limit == 0 {
		limit = maxRequest
	}
	s := New(engine, o)
	s.AddReceivingMiddleware(endWith(ctx))
	err := s.Run(ctx, &sdk.IOTransport{Reader: io.NopCloser(in), Writer: unclosed{out}, MaxLineLength: int(limit)})
	if errors.Is(err, io.EOF) || errors.Is(err, sdk.ErrConnectionClosed) {
		return nil // the client has gone, which is how this ends
	}
	return err
}

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
