package mcp

import (
	"context"
	"net/http"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
)

// Handler serves the streamable HTTP transport. engine is the engine as the
// caller of a request may use it: who that is, and whether a web page may ask, is
// checked before.
func Handler(engine func(*http.Request) runtime.Engine, o Options) http.Handler {
	limit := o.MaxRequestBytes
	if limit == 0 {
		limit = maxRequest
	}
	streamable := sdk.NewStreamableHTTPHandler(serverOf, &sdk.StreamableHTTPOptions{
		Stateless:                    true,
		PropagateRequestCancellation: true,
		DisableLocalhostProtection:   true, // the host name is checked before
		MaxRequestBodyBytes:          limit,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := New(engine(r), o)
		s.AddReceivingMiddleware(endWith(r.Context()))
		streamable.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), serverKey{}, s)))
	})
}

type serverKey struct{}

func serverOf(r *http.Request) *sdk.Server {
	s, _ := r.Context().Value(serverKey{}).(*sdk.Server)
	return s
}

// endWith ends calls when the client has gone: what they do can be told to
// nobody any more. Clients of older versions of the protocol have no other way to
// say so without a session.
func endWith(gone context.Context) sdk.Middleware {
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stop := context.AfterFunc(gone, cancel)
			defer stop()
			return next(ctx, method, r)
		}
	}
}
